/* ini.h: the configuration's grammar; knows no key.
 *
 *     file    = *( line LF )                         ; CR LF is read too, the last LF may be missing
 *     line    = [blank] ( "" / comment / section / entry )
 *     comment = ( "#" / ";" ) anything               ; also behind a section or an entry, after a blank or the "="
 *     section = "[" word [ blank word ] "]"          ; [batch], [model NAME]
 *     entry   = key [blank] "=" [blank] value        ; value runs to the line's end, blanks around it cut
 *     key     = 1*( a-z / 0-9 / "_" )
 *
 * UTF-8; no escapes, no quotes, no continuation. Lines of up to INI_LINE_MAX octets. */
#ifndef NCTD_INI_H
#define NCTD_INI_H
#include <stddef.h>
#define INI_LINE_MAX 4096

typedef struct {
    char text[512];
} ini_why;

typedef struct {
    /* A section begins; word is "" when it has one word only. 0 or an error, with `why` filled without the
     * line. */
    int (*section)(void *ctx, const char *name, const char *word, int line, ini_why *why);
    int (*entry)(void *ctx, const char *key, const char *value, int line, ini_why *why);
    void *ctx;
} ini_reader;

/* Read len octets of text. 0; -EINVAL, or what a callback returned; *ret_line is then the line at fault. The
 * strings handed to callbacks live for the call only. Any thread; no state. */
int ini_parse(const char *text, size_t len, const ini_reader *reader, int *ret_line, ini_why *why);
#endif
