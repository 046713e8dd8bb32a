/* top.h: what the files of `nct top` share. Internal; single-threaded.
 *
 *     top.c         options, the loop, keys
 *     top_http.c    one GET of the daemon's /api/status (daemon/status.h says what stands there)
 *     top_facts.c   numbers of two snapshots: rates, quantiles, streams in order
 *     top_view.c    those numbers as lines of a given width and number
 *     top_term.c    the terminal: full screen, keys, and as it was before whatever happens */
#ifndef NCT_CLI_TOP_H
#define NCT_CLI_TOP_H
#include <jansson.h>
#include <stdio.h>
#include "nct_layer.h"

/* ---- one snapshot ------------------------------------------------------------------------------------------- */
/* GET path of http://HOST:PORT. 0 and *ret (returned owned), or -errno with a sentence that names the endpoint: nobody
 * listens, no answer within timeout_s, not the daemon's HTTP, or no JSON object. */
int top_fetch(json_t **ret, const char *host_port, const char *path, double timeout_s, nct_why *why);

/* ---- what two snapshots say --------------------------------------------------------------------------------- */
enum { TOP_STRETCHES = 4, TOP_BUCKETS = 40, TOP_HISTORY = 256 };
typedef struct {
    double n, mean_ms, p50_ms, p90_ms, p99_ms; /* n 0: nothing passed */
    double share[TOP_BUCKETS];                 /* of n, by bucket; le_ms of the last one is INFINITY */
    double le_ms[TOP_BUCKETS];
    int n_buckets;
} top_band;

typedef struct {
    char model[72], stream[72], client[72]; /* as they may be shown */
    double frames_s, frames, gaps, missing, in_flight, age_s, seq;
} top_stream;

typedef enum { TOP_BY_RATE, TOP_BY_AGE, TOP_BY_GAPS, TOP_BY_NAME, TOP_ORDERS } top_order;
const char *top_order_name(top_order o);

typedef struct {
    json_t *now, *before;      /* owned; before NULL: the first snapshot, figures are since the daemon's start */
    double seconds;            /* between the two, or since the start */
    double rates[TOP_HISTORY]; /* results a second, oldest first */
    int n_rates;
    top_stream *streams;
    size_t n_streams;
} top_facts;

/* Takes `snapshot` over; the one before moves back, unless the daemon was restarted in between. */
void top_facts_add(top_facts *f, json_t *snapshot);
void top_facts_done(top_facts *f);
double top_number(const json_t *at, const char *path);  /* "ledger.refused_by.EAGAIN"; 0 where it is not said */
double top_per_s(const top_facts *f, const char *path); /* of a counter */
const char *top_text(const json_t *at, const char *path, char ret[256]); /* printable, "" where it is not said */
void top_printable(char *to, size_t room, const char *from); /* bytes that a terminal might obey become '?' */
void top_band_of(const top_facts *f, const char *path, double scale, top_band *ret); /* of a histogram; scale to ms */
int top_streams_sort(top_facts *f, top_order order);                                 /* 0 or -ENOMEM */

/* ---- lines -------------------------------------------------------------------------------------------------- */
typedef enum { LOOK_PLAIN, LOOK_TITLE, LOOK_HEAD, LOOK_ALERT, LOOK_FAINT } top_look;
typedef struct {
    int width, height; /* height 0: as many lines as there are */
    int blocks;        /* bars of UTF-8 blocks instead of ASCII */
    top_order order;
    size_t first;     /* stream at the top of the list */
    size_t most;      /* streams shown at most with height 0 */
    const char *hint; /* last line of a screen */
    top_look hint_look;
    void (*line)(void *ctx, const char *text, top_look look); /* never wider than width columns */
    void *ctx;
} top_view;
/* Calls view->line once a line. How many streams found room: for scrolling. */
size_t top_show(const top_facts *f, const top_view *view);

/* ---- the terminal ------------------------------------------------------------------------------------------- */
/* Full screen on stdout. The terminal is given back by top_term_leave(), on exit() and on the signals that end a process;
 * Ctrl-Z gives it back too, until the process goes on. 0 or -errno. */
int top_term_enter(void);
void top_term_leave(void);
void top_term_size(int *ret_width, int *ret_height); /* 80 x 24 where it is not known */
/* Waits for a key: its character, a TOP_KEY_*, or -1 after seconds, on a signal and when the size changed. */
enum { TOP_KEY_UP = 256, TOP_KEY_DOWN, TOP_KEY_PAGE_UP, TOP_KEY_PAGE_DOWN, TOP_KEY_END_OF_INPUT };
int top_term_key(double seconds);
void top_term_begin(void); /* a new picture, drawn over the old one */
void top_term_line(void *ctx, const char *text, top_look look);
void top_term_end(void);
#endif
