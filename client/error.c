/* error.c: names, texts and wire numbers of the one error space. Any thread; static strings, no state. */
#include "error.h"

#include <string.h>

int32_t error_to_wire(int error) {
    switch (error) {
    case 0: return 0;
#define XX(name, number, text)                                                                                       \
    case -name: return -(number);
        NCT_ERROR_MAP(XX)
#undef XX
    default: return -5;
    }
}

int error_from_wire(int32_t status) {
    switch (status) {
    case 0: return 0;
#define XX(name, number, text)                                                                                       \
    case -(number): return -name;
        NCT_ERROR_MAP(XX)
#undef XX
    default: return -EPROTO;
    }
}

const char *error_name(int error) {
    switch (error) {
#define XX(name, number, text)                                                                                       \
    case -name: return #name;
        NCT_ERROR_MAP(XX)
#undef XX
    default: return "?";
    }
}

const char *error_text(int error) {
    switch (error) {
#define XX(name, number, text)                                                                                       \
    case -name: return text;
        NCT_ERROR_MAP(XX)
#undef XX
    case 0: return "no error";
    default: break;
    }
    /* strerrordesc_np is thread-safe and never writes into a shared buffer. Negating INT_MIN is not defined.
     */
    const char *text = error < 0 && error > -4096 ? strerrordesc_np(-error) : NULL;
    return text ? text : "unknown error";
}
