/* ipcpath.c: see ipcpath.h. The lock file says "nctd" so that a socket beside it is known to be ours. */
#include "ipcpath.h"
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "zsock_own.h"

#define MARK "nctd\n"

static void lock_name(const ipcpath *p, char name[128]) {
    snprintf(name, 128, "%s.lock", p->path);
}

/* The folder of the path is made when only its last part is missing, as systemd does for the unit (RuntimeDirectory):
 * /run is empty after every boot. Who may connect is decided by the socket's own mode. */
static int make_folder(const ipcpath *p, zwhy *why) {
    char folder[108];
    snprintf(folder, sizeof folder, "%s", p->path);
    char *slash = strrchr(folder, '/');
    if (!slash || slash == folder) return 0;
    *slash = 0;
    if (!mkdir(folder, 0755) || errno == EEXIST) return 0;
    return zwhy_set(why, -errno, "the folder %s of ipc://%s cannot be made: %s", folder, p->path, strerror(errno));
}

/* Opens and locks; again when the file went away under us (its owner just ended). *ret_ours: it bore our mark. */
static int take_lock(ipcpath *p, bool *ret_ours, zwhy *why) {
    char name[128], mark[sizeof MARK] = "";
    for (;;) {
        struct stat mine, there;
        lock_name(p, name);
        p->lock_fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (p->lock_fd < 0) return zwhy_set(why, -errno, "cannot make %s: %s", name, strerror(errno));
        if (flock(p->lock_fd, LOCK_EX | LOCK_NB)) {
            int error = errno == EWOULDBLOCK ? -EADDRINUSE : -errno;
            close(p->lock_fd);
            p->lock_fd = -1;
            return zwhy_set(why, error, "another nctd serves ipc://%s (%s is locked)", p->path, name);
        }
        if (!fstat(p->lock_fd, &mine) && !stat(name, &there) && mine.st_ino == there.st_ino &&
            mine.st_dev == there.st_dev)
            break;
        close(p->lock_fd);
    }
    *ret_ours = read(p->lock_fd, mark, sizeof MARK - 1) == sizeof MARK - 1 && !strcmp(mark, MARK);
    if (!*ret_ours && (ftruncate(p->lock_fd, 0) || pwrite(p->lock_fd, MARK, sizeof MARK - 1, 0) < 0))
        return zwhy_set(why, -errno, "cannot write %s: %s", name, strerror(errno));
    return 0;
}

static bool somebody_listens(const char *path) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    bool listens = fd >= 0 && (!connect(fd, (struct sockaddr *)&at, sizeof at) || errno == EAGAIN);
    if (fd >= 0) close(fd);
    return listens;
}

static int clear_path(const ipcpath *p, bool ours, zwhy *why) {
    struct stat there;
    if (lstat(p->path, &there))
        return errno == ENOENT ? 0 : zwhy_set(why, -errno, "%s: %s", p->path, strerror(errno));
    if (!S_ISSOCK(there.st_mode))
        return zwhy_set(why, -EEXIST, "%s exists and is no socket; it is left alone", p->path);
    if (somebody_listens(p->path)) return zwhy_set(why, -EADDRINUSE, "another process listens on ipc://%s", p->path);
    if (!ours)
        return zwhy_set(
            why, -EEXIST, "%s is a socket that no nctd left behind; it is left alone, remove it yourself", p->path);
    if (unlink(p->path)) return zwhy_set(why, -errno, "cannot remove the stale %s: %s", p->path, strerror(errno));
    return 0;
}

int ipcpath_claim(ipcpath *p, const char *endpoint, zwhy *why) {
    bool ours = false;
    *p = (ipcpath){.lock_fd = -1};
    if (strncmp(endpoint, "ipc://", 6) || endpoint[6] == '@') return 0;
    snprintf(p->path, sizeof p->path, "%s", endpoint + 6);
    int error = make_folder(p, why);
    if (!error) error = take_lock(p, &ours, why);
    if (!error) error = clear_path(p, ours, why);
    p->claimed = !error;
    if (!error) return 0;
    if (ours) { /* the mark stays for whoever comes next */
        close(p->lock_fd);
        p->lock_fd = -1;
    }
    ipcpath_release(p);
    p->path[0] = 0;
    return error;
}

int ipcpath_open(const ipcpath *p, const char *mode, const char *group, zwhy *why) {
    if (!p->path[0]) return 0;
    if (group[0]) {
        struct group *g = getgrnam(group);
        if (!g) return zwhy_set(why, -EINVAL, "ingest.socket_group: no group %s on this system", group);
        if (chown(p->path, (uid_t)-1, g->gr_gid))
            return zwhy_set(why, -errno, "cannot give %s to group %s: %s", p->path, group, strerror(errno));
    }
    if (chmod(p->path, (mode_t)strtoul(mode, NULL, 8)))
        return zwhy_set(why, -errno, "cannot set mode %s of %s: %s", mode, p->path, strerror(errno));
    return 0;
}

void ipcpath_release(ipcpath *p) {
    char name[128];
    if (p->lock_fd < 0) return;
    lock_name(p, name);
    if (p->claimed) unlink(p->path); /* libzmq leaves it behind */
    unlink(name);
    close(p->lock_fd);
    *p = (ipcpath){.lock_fd = -1};
}
