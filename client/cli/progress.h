/* progress.h: how far a run is, on stderr. Single-threaded. What is not known is shown as unknown, never guessed. */
#ifndef NCT_CLI_PROGRESS_H
#define NCT_CLI_PROGRESS_H
#include <stdint.h>

#define PROGRESS_MODES "auto|bar|json|none" /* the order of progress_mode; auto: bar on a terminal */
typedef enum { PROGRESS_AUTO, PROGRESS_BAR, PROGRESS_JSON, PROGRESS_NONE } progress_mode;

typedef struct {
    progress_mode mode;
    double began_s, shown_s;
    int files, file_no;
    double all, before;     /* bytes of all inputs, of those that are over; all < 0: unknown */
    double weight;          /* bytes of the present one */
    const char *name;       /* of the present one */
    double units, of_units; /* of the present one; of_units < 0: unknown */
    int line_open;
} progress;

/* all_bytes < 0: unknown. Says itself to cli_say, so that lines do not mix. */
void progress_start(progress *p, progress_mode mode, int files, double all_bytes);
void progress_file(progress *p, const char *name, double bytes); /* the next input begins */
void progress_of(progress *p, double of_units);                  /* its work, in any unit; < 0: unknown */
void progress_add(progress *p, double units);                    /* some of it is done */
void progress_spooled(progress *p, int64_t bytes);               /* a pipe is being read */
void progress_file_over(progress *p);
/* Share of all work that is done, 0..1, or -1: unknown. */
double progress_fraction(const progress *p);
/* Seconds that are left by the rate so far; -1: unknown (no fraction, less than 1 s or 1 % of it done). */
double progress_left_s(const progress *p, double now_s);
void progress_end(progress *p);
#endif
