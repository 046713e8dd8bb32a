/* engine_fill.c: a batch into its slot: offsets, the copy of payloads a little each turn, places for results, the job.
 * Called by engine.c on the loop thread; nothing here launches, and it waits only for the threads that help it copy. */
#include "engine_own.h"
#include "pool.h"
#include "rows.h"
#include <assert.h>
#include <string.h>

_Static_assert(ROWS_PAGE == ARENA_PAGE, "a row's pages are the arena's");
_Static_assert(sizeof(nct_frame) == 64, "the table's rows");

size_t slot_in_bytes(const engine *e) {
    return TABLE_BYTES + e->slot_bytes + ROWS_ALIGN;
}
size_t slot_out_bytes(const engine *e) {
    return FLAGS_BYTES + rows_round(e->slot_bytes, ROWS_PAGE) + ROWS_PAGE;
}

/* ---- x, the table, the job ---- */
static void lay_row(slot *s, int32_t n, size_t x_at) {
    const frame *f = s->b->frames[n];
    bool given = f->norm == NCT_NORM_GIVEN;
    s->table[n] = (nct_frame){.x_off = (int64_t)(x_at / rows_dtype_bytes(f->x_dtype)),
        .x_pitch = rows_x_pitch(f),
        .y_pitch = f->t_out,
        .t_in = f->t_in,
        .t_out = f->t_out,
        .pad_left = f->pad_left,
        .pad_right = f->pad_right,
        .stat_in = given ? n : -1,
        .stat_out = f->observe ? n : -1};
}

static void job_begin(slot *s) {
    const frame *f = s->b->frames[0];
    size_t x_size = rows_dtype_bytes(f->x_dtype);
    s->job = (nct_job){.n_frames = s->b->n_frames,
        .x_dtype = f->x_dtype,
        .y_dtype = f->y_dtype,
        .norm = f->norm,
        .frames = s->table,
        .x = s->x,
        .x_count = (int64_t)((slot_in_bytes(s->e) - TABLE_BYTES) / x_size),
        .frame_flags = s->flags,
        .workspace = s->workspace,
        .workspace_bytes = s->workspace_bytes};
}

int fill_begin(slot *s, nct_why *why) {
    engine *e = s->e;
    batch *b = s->b;
    nct_limits lim = {.max_frames = b->n_frames, .n_workers = e->n_workers};
    size_t need, x_at = 0;
    s->row = 0;
    s->sample = 0;
    s->layer = e->setup.layer_of(b->model, e->setup.device);
    s->table = (nct_frame *)(void *)(s->x - rows_round((size_t)b->n_frames * sizeof(nct_frame), ROWS_ALIGN));
    for (int32_t n = 0; n < b->n_frames; n++) {
        const frame *f = b->frames[n];
        lay_row(s, n, x_at);
        x_at += rows_x_bytes(f);
        lim.sum_t_out += f->t_out;
        if (f->t_out > lim.max_t_out) lim.max_t_out = f->t_out;
    }
    int error = nct_workspace(&s->layer, 1, &lim, &need, why);
    if (!error) error = workspace_ensure(e, s, need, why);
    if (error) return error;
    job_begin(s);
    if (b->frames[0]->norm == NCT_NORM_GIVEN) {
        s->job.stats = (nct_stat *)(void *)(s->x + x_at);
        s->job.n_stats = b->n_frames;
        x_at += (size_t)b->n_frames * rows_stats_bytes(b->frames[0]);
    }
    s->x_bytes = x_at;
    memset(s->flags, 0, (size_t)b->n_frames * sizeof *s->flags);
    return 0;
}

/* ---- copying in ---- */
enum {
    FILL_BYTES = 2 << 20, /* a turn, for each thread that copies: flow.md 14 */
    PIECES_MAX = 256,
    PART_BYTES = 128 << 10,
    POOL_BYTES = 1 << 20 /* below that, waking threads costs more than they save */
};
typedef struct {
    const frame *f;
    void *x;
    int64_t from, n; /* samples in the payload's order */
} copy_piece;
typedef struct {
    int32_t n;
    size_t bytes;
    atomic_size_t next; /* byte of the set that nobody has taken yet */
    copy_piece at[PIECES_MAX];
} copy_set;

size_t fill_budget(const engine *e) {
    return FILL_BYTES * (size_t)(e->copiers ? pool_workers(e->copiers) : 1);
}

/* The part of a piece that lies before byte `end` of the set; the piece begins at byte `at`. In samples. */
static int64_t part_before(const copy_piece *p, size_t at, size_t end) {
    size_t size = rows_dtype_bytes(p->f->h.dtype);
    int64_t n = end > at ? (int64_t)((end - at + size - 1) / size) : 0;
    return n < p->n ? n : p->n;
}

static void copy_bytes(const copy_set *set, size_t lo, size_t hi) {
    size_t at = 0;
    for (int32_t i = 0; i < set->n && at < hi; i++) {
        const copy_piece *p = &set->at[i];
        int64_t from = part_before(p, at, lo), to = part_before(p, at, hi);
        if (to > from) rows_copy_in(p->f, p->x, p->from + from, to - from);
        at += (size_t)p->n * rows_dtype_bytes(p->f->h.dtype);
    }
}

/* Takes a part after another until there is none: a thread that wakes late does less, and nobody waits for it long. */
static void copy_share(void *ctx, int32_t worker, int32_t n_workers) {
    copy_set *set = ctx;
    size_t lo;
    (void)worker, (void)n_workers;
    while ((lo = atomic_fetch_add(&set->next, PART_BYTES)) < set->bytes)
        copy_bytes(set, lo, lo + PART_BYTES < set->bytes ? lo + PART_BYTES : set->bytes);
}

/* Adds what is left of the row, or what the budget allows. False: the row is not whole. */
static bool plan_piece(slot *s, copy_set *set, size_t *budget) {
    const frame *f = s->b->frames[s->row];
    int64_t size = (int64_t)rows_dtype_bytes(f->h.dtype), left = (int64_t)f->c_in * f->t_in - s->sample;
    int64_t n = (int64_t)*budget / size < left ? (int64_t)*budget / size : left;
    void *x = s->x + (size_t)s->table[s->row].x_off * rows_dtype_bytes(f->x_dtype);
    if (n) set->at[set->n++] = (copy_piece){f, x, s->sample, n};
    set->bytes += (size_t)(n * size);
    *budget -= (size_t)(n * size);
    s->sample += n;
    if (n < left) return false;
    s->row++;
    s->sample = 0;
    return true;
}

static void row_is_in(slot *s, int32_t n) {
    frame *f = s->b->frames[n];
    if (f->norm == NCT_NORM_GIVEN) rows_copy_stats(f, s->job.stats + (size_t)n * (size_t)f->n_groups);
    s->e->setup.copied_in.fn(s->e->setup.copied_in.ctx, f);
}

bool fill_step(slot *s, size_t *budget) {
    bool on = true;
    while (on && s->row < s->b->n_frames) {
        copy_set set;
        int32_t first = s->row;
        set.n = 0;
        set.bytes = 0;
        atomic_init(&set.next, 0);
        while (on && s->row < s->b->n_frames && set.n < PIECES_MAX) on = plan_piece(s, &set, budget);
        if (s->e->copiers && set.bytes >= POOL_BYTES)
            pool_run(s->e->copiers, copy_share, &set);
        else
            copy_bytes(&set, 0, set.bytes);
        for (int32_t n = first; n < s->row; n++) row_is_in(s, n);
    }
    return s->row == s->b->n_frames;
}

/* ---- y ---- */
typedef struct {
    uint32_t paged, tail; /* pages of rows that have their own, of all the others together */
} pages;

static uint32_t pages_of(size_t bytes) {
    return (uint32_t)((bytes + ARENA_PAGE - 1) / ARENA_PAGE);
}

static pages count_pages(const batch *b) {
    pages p = {0};
    size_t small = 0;
    for (int32_t n = 0; n < b->n_frames; n++) {
        const frame *f = b->frames[n];
        if (rows_y_pages(f))
            p.paged += pages_of(rows_y_bytes(f));
        else
            small += rows_out_room(f);
    }
    p.tail = pages_of(small);
    return p;
}

/* A run for each row that has pages, one for the small ones together. False, and nothing held, when one fails. */
static bool take_apart(batch *b, pages want, arena *a) {
    int32_t n = 0;
    for (; n < b->n_frames; n++) {
        frame *f = b->frames[n];
        if (!rows_y_pages(f)) continue;
        int64_t first = arena_take(a, pages_of(rows_y_bytes(f)));
        if (first < 0) break;
        f->arena_first = (uint32_t)first;
        f->arena_pages = pages_of(rows_y_bytes(f));
    }
    int64_t tail = n == b->n_frames && want.tail ? arena_take(a, want.tail) : 0;
    if (n == b->n_frames && tail >= 0) {
        b->tail_first = (uint32_t)tail;
        b->tail_pages = want.tail;
        return true;
    }
    fill_unplace(b, a);
    return false;
}

static bool take_run(batch *b, pages want, arena *a) {
    int64_t at = arena_take(a, want.paged + want.tail);
    if (at < 0) return false;
    for (int32_t n = 0; n < b->n_frames; n++) {
        frame *f = b->frames[n];
        if (!rows_y_pages(f)) continue;
        f->arena_first = (uint32_t)at;
        f->arena_pages = pages_of(rows_y_bytes(f));
        at += f->arena_pages;
    }
    b->tail_first = (uint32_t)at;
    b->tail_pages = want.tail;
    return true;
}

void fill_unplace(batch *b, arena *a) {
    for (int32_t n = 0; n < b->n_frames; n++) {
        frame *f = b->frames[n];
        if (f->arena_pages) arena_give(a, f->arena_first, f->arena_pages);
        f->arena_first = f->arena_pages = 0;
        f->place = ROW_NONE;
        f->y = NULL;
        f->y_bytes = 0;
    }
    if (b->tail_pages) arena_give(a, b->tail_first, b->tail_pages);
    b->tail_first = b->tail_pages = 0;
}

/* Offsets of the rows in the slot's own y, which are a device's too: rows on pages first, then the small ones. */
static void place_rows(slot *s, bool in_arena, uint32_t paged) {
    batch *b = s->b;
    unsigned char *base = arena_base(s->e->setup.out), *tail = base + (size_t)b->tail_first * ARENA_PAGE;
    size_t big = 0, small = (size_t)paged * ARENA_PAGE;
    for (int32_t n = 0; n < b->n_frames; n++) {
        frame *f = b->frames[n];
        size_t *at = rows_y_pages(f) ? &big : &small;
        unsigned char *mine = s->y + *at;
        if (in_arena && rows_y_pages(f)) mine = base + (size_t)f->arena_first * ARENA_PAGE;
        if (in_arena && !rows_y_pages(f)) mine = tail + (*at - (size_t)paged * ARENA_PAGE);
        f->place = in_arena ? ROW_ARENA : ROW_SLOT;
        f->y = mine;
        f->y_bytes = rows_y_bytes(f);
        size_t y_at = s->e->ops->in_place && in_arena ? (size_t)(mine - base) : *at;
        if (!f->observe) s->table[n].y_off = (int64_t)(y_at / rows_dtype_bytes(f->y_dtype));
        *at += rows_out_room(f);
    }
    s->y_bytes = small;
}

void fill_place(slot *s) {
    batch *b = s->b;
    arena *a = s->e->setup.out;
    pages want = count_pages(b);
    bool in_arena = take_run(b, want, a) || take_apart(b, want, a);
    place_rows(s, in_arena, want.paged);
    const frame *f = b->frames[0];
    if (f->observe) {
        s->job.stats = s->e->ops->in_place ? f->y : (void *)s->y;
        s->job.n_stats = b->n_frames;
        return;
    }
    bool there = s->e->ops->in_place && in_arena;
    s->job.y = there ? arena_base(a) : s->y;
    size_t bytes = there ? arena_bytes(a) : slot_out_bytes(s->e) - FLAGS_BYTES;
    s->job.y_count = (int64_t)(bytes / rows_dtype_bytes(f->y_dtype));
}
