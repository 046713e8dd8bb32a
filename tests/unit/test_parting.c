/* test_parting.c: connections end when their peers have closed, and no later than told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>
#include "parting.h"

#define SECOND_NS 1000000000ull
#define LATER_NS  (60 * SECOND_NS) /* nobody waits that long */

static bool never(void) {
    return false;
}
static bool at_once(void) {
    return true;
}

static int add_one(parting *p) {
    int fd[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    assert_int_equal(parting_add(p, fd[0]), 0);
    return fd[1];
}

/* A client that goes on sending more than a socket holds, then reads its input to the end. */
static void *sender(void *arg) {
    static char bytes[1 << 20];
    int fd = *(int *)arg;
    char got[16];
    assert_int_equal(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    assert_int_equal(recv(fd, got, sizeof got, MSG_WAITALL), 6);
    assert_memory_equal(got, "result", 6);
    close(fd);
    return NULL;
}

static void test_it_ends_with_the_last_peer(void **state) {
    (void)state;
    enum { N = 40 };
    parting p = {0};
    pthread_t threads[N];
    int fds[N];
    for (int i = 0; i < N; i++) {
        fds[i] = add_one(&p);
        assert_int_equal(send(p.fds[i].fd, "result", 6, 0), 6);
    }
    for (int i = 0; i < N; i++) assert_int_equal(pthread_create(&threads[i], NULL, sender, &fds[i]), 0);
    uint64_t begin_ns = uv_hrtime();
    parting_end(&p, begin_ns + LATER_NS, never);
    assert_true(uv_hrtime() - begin_ns < LATER_NS);
    assert_int_equal(p.n, 0);
    assert_null(p.fds);
    for (int i = 0; i < N; i++) pthread_join(threads[i], NULL);
}

static void test_nobody_waits_beyond_the_time_or_a_hurry(void **state) {
    (void)state;
    for (int hurry = 0; hurry < 2; hurry++) {
        parting p = {0};
        int open = add_one(&p);
        char c;
        uint64_t begin_ns = uv_hrtime();
        parting_end(&p, begin_ns + (hurry ? LATER_NS : SECOND_NS / 10), hurry ? at_once : never);
        assert_true(uv_hrtime() - begin_ns < LATER_NS / 2);
        assert_true(hurry || uv_hrtime() - begin_ns >= SECOND_NS / 10);
        assert_int_equal(recv(open, &c, 1, 0), 0);
        close(open);
    }
    parting none = {0};
    parting_end(&none, uv_hrtime() + LATER_NS, never);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_ends_with_the_last_peer),
        cmocka_unit_test(test_nobody_waits_beyond_the_time_or_a_hurry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
