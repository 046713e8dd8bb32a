/* page.c: see page.h. The assembler puts the files one after the other; the Makefile makes this depend on them. */
#include "page.h"

__asm__(".pushsection .rodata\n"
        ".global page_html\n"
        ".hidden page_html\n"
        "page_html:\n"
        ".incbin \"daemon/page/head.html\"\n"
        ".incbin \"daemon/page/page.css\"\n"
        ".incbin \"daemon/page/body.html\"\n"
        ".incbin \"daemon/page/draw.js\"\n"
        ".incbin \"daemon/page/streams.js\"\n"
        ".incbin \"daemon/page/page.js\"\n"
        ".ascii \"</script>\\n</body>\\n</html>\\n\"\n"
        ".global page_html_end\n"
        ".hidden page_html_end\n"
        "page_html_end: .byte 0\n"
        ".popsection\n");
extern const char page_html_end[];

size_t page_bytes(void) {
    return (size_t)(page_html_end - page_html);
}
