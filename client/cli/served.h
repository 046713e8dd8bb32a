/* served.h: what a daemon says of itself in WELCOME's JSON, as nct's commands need it. Single-threaded. */
#ifndef NCT_CLI_SERVED_H
#define NCT_CLI_SERVED_H
#include <jansson.h>
#include "nct.h"
#include "nct_layer.h"

typedef struct {
    char name[65], mode[16], digest[65];
    nct_params params;  /* pads filled in */
    double sample_rate; /* 0: not said */
} served_model;

typedef struct {
    json_t *json; /* all of it */
    char version[32], backend[32], variant[64], precision[16];
    uint64_t max_frame_bytes;
    uint32_t window;
    int n_models;
    served_model *models;
} served;

/* 0; -EPROTO with a sentence: not JSON, or without what it must have. */
int served_read(served *ret, const char *welcome, size_t len, nct_why *why);
void served_done(served *s); /* a zeroed one is fine */
/* The model of that name, or with name NULL the only one. NULL with a sentence that lists what is there. */
const served_model *served_find(const served *s, const char *name, nct_why *why);
/* Layer parameters from a JSON object with PyTorch's names (model_json). 0 or -EPROTO. */
int served_params(nct_params *ret, const json_t *layer, nct_why *why);
/* An object of the ledger and of other counts on one line: "received 12, ok 10, refused 2 (EAGAIN 2)". malloc'ed. */
char *served_ledger_text(const json_t *ledger);

/* Connect, read WELCOME. nonblock: nct_send() never waits. On failure a sentence was said, and the exit code is returned (> 0). */
int served_connect(nct **ret, served *ret_served, const char *endpoint, double timeout_s, int nonblock);
/* The same for a private daemon, which has no keys. */
int served_connect_private(nct **ret, served *ret_served, const char *endpoint, double timeout_s);
/* Says why there is no session: libnct names the endpoint in what it says of a daemon that does not answer, and in little else. */
void served_unreached(const char *endpoint, int error, const char *reason);
/* True, and a sentence was said: the endpoint is an ipc path and nothing is there for 2 s, so that waiting is of no use to
 * one who only asks. */
int served_absent(const char *endpoint);
#endif
