/* page.h: the live page: one HTML text with its style and script in it, made of the files in daemon/page/. */
#ifndef NCTD_PAGE_H
#define NCTD_PAGE_H
#include <stddef.h>

extern const char page_html[];
size_t page_bytes(void);
#endif
