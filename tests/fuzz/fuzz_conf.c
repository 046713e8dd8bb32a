/* fuzz_conf.c: any octets are a configuration or a sentence, never a crash, a leak or a lasting loop. */
#include <stdlib.h>
#include "config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    config *c = NULL, *again = NULL;
    config_why why = {{0}};
    char *text = NULL;
    size_t len = 0;
    if (config_parse(&c, "fuzz", (const char *)data, size, &why)) {
        if (!why.text[0] || c) abort(); /* a refusal without a sentence, or a half-made result */
        return 0;
    }
    FILE *f = open_memstream(&text, &len);
    config_dump(c, f);
    fclose(f);
    if (config_parse(&again, "dump", text, len, &why)) abort(); /* what is dumped reads back */
    config_free(c);
    config_free(again);
    free(text);
    return 0;
}
