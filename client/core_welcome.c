/* core_welcome.c: WELCOME's JSON, kept as text for the caller, and the few facts of it that the library goes by; and
 * the list of streams that outlive a session.
 *
 * Read here: "models", an array of objects with "name" and "mode" ("frame" or "stream"), or an object of such objects by
 * name; "max_frame_bytes", at the top or in "limits". What is missing is taken as frame mode and as no limit: the
 * daemon has the last word anyway. */
#include "core.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void names_free(char **names) {
    for (char **n = names; n && *n; n++) free(*n);
    free(names);
}

static int is_stateful(json_t *model) {
    const char *mode = json_string_value(json_object_get(model, "mode"));
    return mode && !strcmp(mode, "stream");
}

static int names_add(char **names, size_t *n, const char *name) {
    if (!name) return 0;
    names[*n] = strdup(name);
    return names[*n] ? (int)++*n * 0 : -ENOMEM;
}

static int read_models(json_t *models, char ***ret) {
    size_t count = json_is_array(models) ? json_array_size(models) : json_object_size(models), n = 0, i;
    char **names = calloc(count + 1, sizeof *names);
    const char *key;
    json_t *model;
    int error = names ? 0 : -ENOMEM;
    if (!error && json_is_array(models)) json_array_foreach(models, i, model) {
            if (!error && is_stateful(model))
                error = names_add(names, &n, json_string_value(json_object_get(model, "name")));
        }
    else if (!error)
        json_object_foreach(models, key, model) {
            if (!error && is_stateful(model)) error = names_add(names, &n, key);
        }
    if (error) {
        names_free(names);
        return error;
    }
    *ret = names;
    return 0;
}

int core_welcome(nct *c, const void *json, size_t len) {
    if (len > WIRE_JSON_MAX) return -EPROTO;
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(root)) {
        json_decref(root);
        return -EPROTO;
    }
    char **names = NULL, *text = malloc(len + 1);
    int error = text ? read_models(json_object_get(root, "models"), &names) : -ENOMEM;
    if (error) {
        free(text);
        json_decref(root);
        return error;
    }
    json_t *max = json_object_get(root, "max_frame_bytes");
    if (!max) max = json_object_get(json_object_get(root, "limits"), "max_frame_bytes");
    memcpy(text, json, len);
    text[len] = 0;
    core_welcome_done(c);
    c->welcome = text;
    c->welcome_bytes = len;
    c->stateful_models = names;
    c->max_frame_bytes = json_integer_value(max) > 0 ? (uint64_t)json_integer_value(max) : UINT64_MAX;
    json_decref(root);
    return 0;
}

void core_welcome_done(nct *c) {
    free(c->welcome);
    names_free(c->stateful_models);
    c->welcome = NULL;
    c->stateful_models = NULL;
}

int core_stateful(const nct *c, const char *model) {
    for (char **n = c->stateful_models; n && *n; n++)
        if (!strcmp(*n, model)) return 1;
    return 0;
}

stream *core_stream(nct *c, const char *model, const char *name) {
    for (stream *s = c->streams; s; s = s->next)
        if (!strcmp(s->name, name) && !strcmp(s->model, model)) return s;
    return NULL;
}

int core_stream_add(nct *c, const char *model, const char *name, stream **ret) {
    stream *s = core_stream(c, model, name);
    if (!s) {
        if (c->n_streams >= CORE_STREAMS_MAX)
            return core_reason(c, -EUSERS, "%u streams are open: close some", c->n_streams);
        if (!(s = calloc(1, sizeof *s))) return core_reason(c, -ENOMEM, "no memory for a stream");
        memcpy(s->model, model, strlen(model) + 1);
        memcpy(s->name, name, strlen(name) + 1);
        s->stateful = core_stateful(c, model);
        s->next = c->streams;
        c->streams = s;
        c->n_streams++;
    }
    *ret = s;
    return 0;
}

void core_stream_remove(nct *c, stream *s) {
    stream **at = &c->streams;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    c->n_streams--;
    for (uint32_t i = 0; i < c->n_flight; i++)
        if (c->flight[i]->state == s) c->flight[i]->state = NULL;
    free(s->facts);
    free(s);
}
