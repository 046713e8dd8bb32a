/* notify.h: systemd's notification protocol (sd_notify(3)), our own datagram: a unit of Type=notify must
 * never depend on a library that may be missing from a build. Loop thread. */
#ifndef NCTD_NOTIFY_H
#define NCTD_NOTIFY_H
#include <stdbool.h>
#include <stdint.h>

/* Remembers $NOTIFY_SOCKET and $WATCHDOG_USEC of the unit (and removes both from the environment, so that no
 * child speaks in our name). True when a manager listens. */
bool notify_init(void);
/* Sends "NAME=value\n..." lines. 0, or a negative errno when the manager cannot be reached; 0 without one. A manager that
 * is behind (Linux queues 10 datagrams) is waited for, NOTIFY_WAIT_MS at most: were READY=1 lost, a reload would never end
 * for it. */
#define NOTIFY_WAIT_MS 100
int notify_send(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* What is said again soon, and may be lost: not waited for. */
int notify_hint(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* RELOADING=1 with MONOTONIC_USEC, as systemd 253 and later want it of Type=notify-reload. */
int notify_reloading(void);
/* How often WATCHDOG=1 is due, in ms (half of the unit's WatchdogSec); 0: no watchdog. */
uint64_t notify_watchdog_ms(void);
void notify_done(void);
#endif
