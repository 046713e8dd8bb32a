/* info.c: `nct info`, what a daemon says of itself. */
#include "served.h"
#include "cli.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const cli_option options_info[] = {CLI_OPTION_CONNECT(CLI_INGEST), CLI_OPTION_KEYS, CLI_OPTION_JSON,
    {"timeout", 0, "S", "5 s", "Longest wait for the daemon."}, {0}};

static void show_value(const json_t *v) {
    char *text = json_is_string(v) ? NULL : json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    printf("%s", text ? text : json_string_value(v) ? json_string_value(v) : "-");
    free(text);
}

/* Every fact of an object on a line of its own; objects inside are left to their own sections. */
static void show_facts(const json_t *object, const char *indent) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)object, key, v) {
        if (json_is_object(v) || json_is_array(v)) continue;
        printf("%s%-18s ", indent, key);
        show_value(v);
        putchar('\n');
    }
}

static void show_ledger(const json_t *ledger, const char *indent) {
    char *text = json_is_object(ledger) ? served_ledger_text(ledger) : NULL;
    if (text) printf("%sledger: %s\n", indent, text);
    free(text);
}

static void show_models(const json_t *models) {
    const char *name;
    json_t *m;
    size_t i;
    json_array_foreach(models, i, m) {
        printf("\nmodel %s\n", json_string_value(json_object_get(m, "name")));
        show_facts(m, "  ");
        show_ledger(json_object_get(m, "ledger"), "  ");
    }
    if (!json_is_object(models)) return;
    json_object_foreach((json_t *)models, name, m) {
        printf("\nmodel %s\n", name);
        show_facts(m, "  ");
        show_ledger(json_object_get(m, "ledger"), "  ");
    }
}

static void show_streams(const json_t *streams) {
    const json_t *o;
    size_t i;
    json_array_foreach(streams, i, o) {
        printf("\nstream %s/%s\n", json_string_value(json_object_get(o, "model")),
            json_string_value(json_object_get(o, "stream")));
        show_facts(o, "  ");
        show_facts(json_object_get(o, "facts"), "  ");
    }
}

static void show(const served *s) {
    const char *key;
    json_t *v;
    show_facts(s->json, "");
    json_object_foreach(s->json, key, v) {
        if (!json_is_object(v) || json_object_get(s->json, "models") == v || json_object_get(s->json, "ledger") == v)
            continue;
        printf("\n%s\n", key);
        show_facts(v, "  ");
    }
    show_models(json_object_get(s->json, "models"));
    show_streams(json_object_get(s->json, "streams"));
    putchar('\n');
    show_ledger(json_object_get(s->json, "ledger"), "");
}

/* What the counts ask for. */
static void show_advice(const json_t *welcome) {
    const char *precision = json_string_value(json_object_get(welcome, "precision"));
    long long n = json_integer_value(json_object_get(json_object_get(welcome, "ledger"), "offset"));
    if (n <= 0 || !precision) return;
    printf("\n%lld frame%s had a group with |mean|/std beyond what %s resolves to 1 %%: %s\n", n, n == 1 ? "" : "s",
        precision, strcmp(precision, "f32") ? "set engine.precision = f32" : "take the mean out before sending them");
}

int cmd_info(int argc, char **argv) {
    const char *endpoint = CLI_INGEST, *value;
    double timeout_s = 5;
    int row, json = 0;
    cli_args a;
    cli_args_init(&a, options_info, argc, argv);
    while ((row = cli_next(&a, &value)) != CLI_END) {
        if (row == CLI_WRONG) return CLI_USAGE;
        if (row == CLI_OPERAND) return cli_usage("info takes no operand, '%s' is one", cli_quote(value));
        if (row == cli_row(options_info, "connect"))
            endpoint = value;
        else if (row == cli_row(options_info, "json"))
            json = 1;
        else if (cli_double("--timeout", value, 0.1, 3600, &timeout_s))
            return CLI_USAGE;
    }
    nct *c;
    served s;
    if (served_absent(endpoint)) return CLI_NO_DAEMON;
    int code = served_connect(&c, &s, endpoint, timeout_s, 0);
    if (code) return code;
    if (json) {
        json_dumpf(s.json, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
        putchar('\n');
    } else {
        show(&s);
        show_advice(s.json);
    }
    served_done(&s);
    nct_close(c);
    return CLI_OK;
}
