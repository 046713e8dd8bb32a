/* error.h: the one error space. Inside and in the library's API errors are negative errnos of the host; on the wire
 * they are minus the fixed numbers of this table (Linux's), mapped at the edge. */
#ifndef NCT_ERROR_H
#define NCT_ERROR_H
#include <errno.h>
#include <stdint.h>

/* XX(errno name, number on the wire, short text) */
#define NCT_ERROR_MAP(XX)                                                                                            \
    XX(ENOENT, 2, "no such model")                                                                                   \
    XX(EIO, 5, "engine failed")                                                                                      \
    XX(EAGAIN, 11, "window is full")                                                                                 \
    XX(EACCES, 13, "not allowed")                                                                                    \
    XX(EBUSY, 16, "stream belongs to another session")                                                               \
    XX(EEXIST, 17, "request id is in flight already")                                                                \
    XX(EINVAL, 22, "invalid message or value")                                                                       \
    XX(ETIME, 62, "ttl ran out in the queue")                                                                        \
    XX(EPROTO, 71, "not this protocol")                                                                              \
    XX(EILSEQ, 84, "seq is not the next one")                                                                        \
    XX(EUSERS, 87, "too many clients or streams")                                                                    \
    XX(EMSGSIZE, 90, "message is too large")                                                                         \
    XX(ENOTSUP, 95, "not supported")                                                                                 \
    XX(ENOBUFS, 105, "daemon is full")                                                                               \
    XX(ESHUTDOWN, 108, "daemon is shutting down")                                                                    \
    XX(ESTALE, 116, "session, epoch or state is gone")

int32_t error_to_wire(int error);    /* -EAGAIN -> -11; 0 -> 0; an error outside the table -> -5 (EIO) */
int error_from_wire(int32_t status); /* -11 -> -EAGAIN; 0 -> 0; an unknown number -> -EPROTO */
const char *error_name(int error);   /* "EAGAIN" for -EAGAIN; "?" outside the table */
const char *error_text(int error);   /* the table's short text; strerror's outside of it */
#endif
