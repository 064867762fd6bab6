/* Descriptors that Python's memory owns: one call opens and stores them there, and one closes them.
 *
 * Thread contract: no state; a slot is used by one thread at a time. An interrupt of Python's comes before or
 * after a call: so the slot always has the open descriptors, and its release closes them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include "contract/file.h"
#include "system.h"

int64_t seg_open(int32_t *slot, const char *path, int32_t flags, int32_t mode, seg_status *found)
{
    do
        slot[0] = open(path, flags, (mode_t)mode);
    while (slot[0] < 0 && errno == EINTR);
    if (slot[0] < 0)
        return -errno;
    int64_t code = found != NULL ? seg_fstat(slot[0], found) : 0;
    if (code < 0)
        seg_close(slot);
    return code;
}

int64_t seg_open_pipe(int32_t *slot)
{
    int ends[2];
    if (open_pipe(ends) < 0)
        return -errno;
    slot[0] = ends[0];
    slot[1] = ends[1];
    return 0;
}

int64_t seg_watch(int32_t *slot, const char *directory)
{
    slot[0] = watch_directory(directory);
    return slot[0] < 0 ? -errno : 0;
}

/* The kernel has released the descriptor even if close(2) fails: it is never closed again. */
int64_t seg_close(int32_t *slot)
{
    int error = 0;
    for (int i = 0; i < 2; i++) {
        int fd = slot[i];
        slot[i] = -1;
        if (fd >= 0 && close(fd) < 0 && errno != EINTR && !error)
            error = errno;
    }
    return -error;
}
