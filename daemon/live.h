/* live.h: people at the live page: each is told the status once a second, and at most LIVE_PICTURES_S pictures (heat.h) a
 * second of the results of the stream it chose. Results are looked at only while somebody chose a stream. Loop thread. */
#ifndef NCTD_LIVE_H
#define NCTD_LIVE_H
#include "http.h"
#include "spine.h"

#define LIVE_PICTURES_S 20

typedef struct live {
    spine *s;
    const char *(*not_ready)(void *ctx);
    void *ctx;
    uint32_t n_viewers, n_watching;
    struct live_viewer *viewers;
} live;

/* One more viewer: of the stream `of` ("model/stream", "" for none) and of the streams with `search` in them. 0, -EINVAL: no
 * such name can be; -ENOMEM. Ends by ret->done. */
int live_join(live *l, const char *of, const char *search, http_events *ret);
#endif
