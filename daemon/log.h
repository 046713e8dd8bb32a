/* log.h: one event, one line on stderr, whole and at once, with journald's priority prefix. Any thread. */
#ifndef NCTD_LOG_H
#define NCTD_LOG_H
typedef enum { LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERROR } log_level; /* config.def's order */

/* The least severe level that is written; the daemon's only mutable file-scope state. */
void log_set_level(log_level level);
/* Writes "<6>text\n" in one write(2). Control characters, newlines and invalid UTF-8 become \xNN, so an event
 * stays one line whatever a peer or a file name holds; text past 2000 octets is cut with "...". With stderr a
 * full pipe, waits at most 100 ms, then drops the line, and without waiting those after it until the pipe has
 * room again; says how many were dropped with the next one. */
void log_event(log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define log_debug(...)   log_event(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)    log_event(LOG_INFO, __VA_ARGS__)
#define log_warning(...) log_event(LOG_WARNING, __VA_ARGS__)
#define log_error(...)   log_event(LOG_ERROR, __VA_ARGS__)
/* The escaping alone: at most size - 1 octets and a 0 into out; returns out. For metrics and tests too. */
char *log_escape(const char *text, char *out, unsigned long size);
#endif
