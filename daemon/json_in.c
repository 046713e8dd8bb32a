/* json_in.c: see json_in.h. Called by ingest on the loop thread; jansson caps the depth at 2048. */
#include "json_in.h"
#include <errno.h>
#include <stdio.h>
#include "wire.h"

int json_in(json_t **ret, const void *bytes, size_t len, const char *what, char *why, size_t why_size) {
    json_error_t at;
    if (len > WIRE_JSON_MAX) {
        snprintf(why, why_size, "%s: JSON of %zu bytes; %d are allowed", what, len, WIRE_JSON_MAX);
        return -EMSGSIZE;
    }
    json_t *o = len ? json_loadb(bytes, len, JSON_REJECT_DUPLICATES, &at) : json_object();
    if (json_is_object(o)) {
        *ret = o;
        return 0;
    }
    if (o)
        snprintf(why, why_size, "%s: the payload is JSON but no object", what);
    else
        snprintf(why, why_size, "%s: the payload is no JSON: line %d column %d: %.80s", what, len ? at.line : 0,
            len ? at.column : 0, len ? at.text : "no memory");
    json_decref(o);
    return -EINVAL;
}
