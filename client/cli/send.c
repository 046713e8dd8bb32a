/* send.c: `nct send`, frames of a file or pipe to a stream of a running daemon, for whoever subscribes there. What comes back to
 * this client is each result's header: figures, no samples. */
#include "audio.h"
#include "cli.h"
#include "hist.h"
#include "served.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const cli_option options_send[] = {CLI_OPTION_CONNECT(CLI_INGEST), CLI_OPTION_KEYS,
    {"name", 'n', "MODEL", "its only one", "The daemon's model."},
    {"stream", 's', "STREAM", "nct", "Name of the stream; subscribers see MODEL/STREAM."},
    {"frame", 'f', "SPAN", "20 ms", "Length of a frame: 20ms, 1s, or steps (480)."},
    {"pace", 0, NULL, NULL, "Send at the input's own rate instead of as fast as the daemon takes it."},
    {"ttl", 0, "MS", "none", "The daemon drops a frame that waited longer."},
    {"raw", 0, "f32|f64|i16|i32", NULL, "The input is headerless, interleaved, little-endian."},
    {"rate", 0, "HZ", NULL, "With --raw: its sample rate."}, {"channels", 0, "N", NULL, "With --raw: its channels."},
    {"timeout", 0, "S", "10 s", "Longest wait for the daemon."}, CLI_OPTION_JSON, {0}};

typedef struct {
    const char *endpoint, *name, *stream, *input;
    double frame_s, ttl_ms, timeout_s;
    uint64_t frame_steps;
    audio_raw raw;
    int pace, json;
} send_options;

typedef struct {
    send_options o;
    nct *c;
    served daemon;
    const served_model *model;
    audio *in;
    uint64_t sent, ok, refused;
    int64_t steps;
    hist latency;
    double began_s;
    char refusal[256]; /* the last one's sentence */
} sender;

static int take_option(send_options *o, int row, const char *v) {
    static const int dtypes[] = {NCT_F32, NCT_F64, NCT_I16, NCT_I32};
    const char *name = options_send[row].name;
    uint64_t n = 0;
    int word;
    if (!strcmp(name, "connect"))
        o->endpoint = v;
    else if (!strcmp(name, "name"))
        o->name = v;
    else if (!strcmp(name, "stream"))
        o->stream = v;
    else if (!strcmp(name, "frame"))
        return cli_span("--frame", v, &o->frame_s, &o->frame_steps);
    else if (!strcmp(name, "pace"))
        o->pace = 1;
    else if (!strcmp(name, "json"))
        o->json = 1;
    else if (!strcmp(name, "ttl"))
        return cli_double("--ttl", v, 0.001, 4e6, &o->ttl_ms);
    else if (!strcmp(name, "timeout"))
        return cli_double("--timeout", v, 0.1, 86400, &o->timeout_s);
    else if (!strcmp(name, "raw")) {
        if ((word = cli_word("--raw", v, options_send[row].arg)) < 0) return word;
        o->raw.dtype = dtypes[word];
    } else {
        int r = cli_u64(!strcmp(name, "rate") ? "--rate" : "--channels", v, 1, 1 << 30, &n);
        if (!strcmp(name, "rate"))
            o->raw.rate = (int)n;
        else
            o->raw.channels = (int)n;
        return r;
    }
    return 0;
}

static int read_options(send_options *o, int argc, char **argv) {
    const char *value;
    int row, bad = 0;
    cli_args a;
    *o = (send_options){.endpoint = CLI_INGEST, .stream = "nct", .frame_s = 0.02, .timeout_s = 10};
    cli_args_init(&a, options_send, argc, argv);
    while (!bad && (row = cli_next(&a, &value)) != CLI_END) {
        if (row == CLI_WRONG) return CLI_USAGE;
        if (row == CLI_OPERAND && o->input)
            return cli_usage("one input at a time; '%s' is a second", cli_quote(value));
        if (row == CLI_OPERAND)
            o->input = value;
        else
            bad = take_option(o, row, value);
    }
    if (bad) return CLI_USAGE;
    if (!o->input) return cli_usage("name a file, or - for stdin");
    if (!o->raw.dtype != !(o->raw.rate && o->raw.channels))
        return cli_usage("--raw, --rate and --channels go together");
    return CLI_OK;
}

/* ---- the work ---------------------------------------------------------------------------------------------- */
static void got(sender *s, nct_answer *a) {
    if (a->kind == NCT_RESULT && !a->status) {
        s->ok++;
        hist_add(&s->latency, (uint64_t)(cli_now_s() * 1e9) - a->tag);
    } else {
        s->refused++;
        snprintf(s->refusal, sizeof s->refusal, "%s", *a->text ? a->text : nct_strerror(a->status));
        if (s->refused == 1) cli_say("frame %llu: %s", (unsigned long long)a->seq, s->refusal);
    }
    nct_release(a);
}

static int drain(sender *s, int timeout_ms) {
    nct_answer a;
    int r;
    while (!(r = nct_recv(s->c, timeout_ms, &a))) got(s, &a);
    return r == -EAGAIN || r == -ENOENT || r == -EINTR ? 0 : r;
}

static void wait_until(sender *s, double when_s) {
    for (double left; (left = when_s - cli_now_s()) > 0 && !cli_stopped;) {
        if (nct_in_flight(s->c) && left > 0.002)
            drain(s, 1);
        else
            nanosleep(&(struct timespec){0, (long)(left < 0.01 ? left * 1e9 : 1e7)}, NULL);
    }
}

static int post(sender *s, const float *frame, int64_t steps, int64_t pos) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    nct_request q = {.model = s->model->name,
        .stream = s->o.stream,
        .dtype = NCT_DTYPE_F32,
        .flags = NCT_FLAG_NO_REPLY | NCT_FLAG_INTERLEAVED,
        .channels = (uint32_t)audio_about(s->in)->channels,
        .steps = (uint32_t)steps,
        .seq = s->sent + 1,
        .pos = (uint64_t)pos,
        .ttl_us = (uint32_t)(s->o.ttl_ms * 1000),
        .t_capture_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec,
        .tag = (uint64_t)(cli_now_s() * 1e9)};
    int r = drain(s, 0);
    while (!r && nct_in_flight(s->c) >= nct_window(s->c) && !cli_stopped) {
        nct_answer a;
        r = nct_recv(s->c, (int)(s->o.timeout_s * 1000), &a);
        if (!r) got(s, &a);
        if (r == -EINTR || r == -ENOENT) r = 0;
    }
    if (!r && !cli_stopped) r = nct_send(s->c, &q, frame, NULL);
    if (r && r != -EINTR) return r;
    s->sent++;
    return 0;
}

static int stream(sender *s, float *frame, int64_t frame_steps) {
    const audio_info *info = audio_about(s->in);
    nct_why why;
    int64_t n = 0;
    s->began_s = cli_now_s();
    while (!cli_stopped && (n = audio_read(s->in, frame, frame_steps, &why)) > 0) {
        if (s->o.pace) wait_until(s, s->began_s + (double)s->steps / info->rate);
        int r = post(s, frame, n, s->steps);
        if (r) {
            cli_say("%s", nct_reason(s->c));
            return cli_exit_of(r);
        }
        s->steps += n;
    }
    if (n < 0 && !cli_stopped) {
        cli_say("%s: %s", cli_quote(s->o.input), why.text);
        return CLI_FAILED;
    }
    audio_drain(s->in);
    double give_up = cli_now_s() + s->o.timeout_s;
    while (nct_in_flight(s->c) && cli_now_s() < give_up && !cli_stopped) drain(s, 100);
    return s->refused || cli_stopped || nct_in_flight(s->c) ? CLI_FAILED : CLI_OK;
}

static void report(const sender *s) {
    double wall = cli_now_s() - s->began_s, sound = (double)s->steps / audio_about(s->in)->rate;
    double p50 = (double)hist_quantile(&s->latency, 0.5) / 1e6, p99 = (double)hist_quantile(&s->latency, 0.99) / 1e6;
    if (s->o.json)
        printf("{\"sent\":%llu,\"ok\":%llu,\"refused\":%llu,\"steps\":%lld,\"audio_s\":%.6f,\"wall_s\":%.6f,"
               "\"frames_per_s\":%.3f,\"p50_ms\":%.6f,\"p99_ms\":%.6f}\n",
            (unsigned long long)s->sent, (unsigned long long)s->ok, (unsigned long long)s->refused,
            (long long)s->steps, sound, wall, (double)s->sent / wall, p50, p99);
    cli_say("%llu frames (%.3f s of sound) to %s/%s in %.3f s: %.1f x real time, %.1f frames/s",
        (unsigned long long)s->sent, sound, s->model->name, s->o.stream, wall, sound / wall, (double)s->sent / wall);
    cli_say("%llu ok, %llu refused or failed; send to answer p50 %.3f ms, p99 %.3f ms", (unsigned long long)s->ok,
        (unsigned long long)s->refused, p50, p99);
}

static int open_stream(sender *s) {
    const audio_info *info = audio_about(s->in);
    char facts[128], text[256];
    if (info->channels != s->model->params.in_channels) {
        audio_channels_differ(info, s->o.raw.dtype != 0, s->model->params.in_channels, text);
        cli_say("%s: %s", cli_quote(s->o.input), text);
        return CLI_FAILED;
    }
    snprintf(facts, sizeof facts, "{\"sample_rate\": %d}", info->rate);
    int r = nct_stream_open(s->c, s->model->name, s->o.stream, facts, NULL);
    if (!r) return CLI_OK;
    cli_say("%s", nct_reason(s->c));
    return cli_exit_of(r);
}

static int work(sender *s) {
    nct_why why;
    int r = audio_open(&s->in, s->o.input, &s->o.raw, 1, NULL, NULL, &why);
    if (r) {
        cli_say("%s: %s", cli_quote(s->o.input), why.text);
        return CLI_FAILED;
    }
    int code = served_connect(&s->c, &s->daemon, s->o.endpoint, s->o.timeout_s, 0);
    if (code) return code;
    s->model = served_find(&s->daemon, s->o.name, &why);
    if (!s->model) return cli_usage("%s", why.text);
    code = open_stream(s);
    if (code) return code;
    double steps = s->o.frame_steps ? (double)s->o.frame_steps : s->o.frame_s * audio_about(s->in)->rate + 0.5;
    int channels = audio_about(s->in)->channels;
    if (steps < 1) steps = 1;
    if (steps * channels * 4 > (double)s->daemon.max_frame_bytes)
        return cli_usage("a frame of %.0f steps of %d channels is %.0f bytes; the daemon takes %llu", steps, channels,
            steps * channels * 4, (unsigned long long)s->daemon.max_frame_bytes);
    float *frame = malloc((size_t)steps * (size_t)channels * sizeof *frame);
    if (!frame) return CLI_FAILED;
    code = stream(s, frame, (int64_t)steps);
    free(frame);
    report(s);
    return code;
}

int cmd_send(int argc, char **argv) {
    sender *s = calloc(1, sizeof *s);
    if (!s) return CLI_FAILED;
    int code = read_options(&s->o, argc, argv);
    if (!code) {
        cli_catch_signals();
        code = work(s);
    }
    nct_close(s->c);
    served_done(&s->daemon);
    audio_close(s->in);
    free(s);
    return code;
}
