/* core_path.c: why an ipc path cannot be reached. libzmq tries such a path for ever without a word, so nct_open() asks
 * here once its time is over. The handle's thread; no state; reads only the file system and the group's name. */
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core.h"

static void group_name(gid_t gid, char *out, size_t size) {
    char space[1024];
    struct group group, *found = NULL;
    if (!getgrgid_r(gid, &group, space, sizeof space, &found) && found)
        snprintf(out, size, "%s", group.gr_name);
    else
        snprintf(out, size, "%u", (unsigned)gid);
}

/* The first folder on the way that this process may not pass through, or the socket itself. */
static bool closed_part(const char *path, char *part, size_t size) {
    for (const char *end = strchr(path + 1, '/'); end; end = strchr(end + 1, '/')) {
        snprintf(part, size, "%.*s", (int)(end - path), path);
        if (access(part, X_OK)) return errno == EACCES;
    }
    snprintf(part, size, "%s", path);
    return access(path, W_OK) && errno == EACCES;
}

bool core_path_denied(const char *endpoint, char *ret_text, size_t size) {
    char part[108], group[64];
    struct stat st;
    if (strncmp(endpoint, "ipc:///", 7) != 0 || !closed_part(endpoint + 6, part, sizeof part) || stat(part, &st))
        return false;
    group_name(st.st_gid, group, sizeof group);
    snprintf(ret_text, size, "permission denied: %s has mode %04o and the group %s; is this user a member?", part,
        (unsigned)st.st_mode & 07777, group);
    return true;
}
