/* Staged appends: batches get their offsets in their file, a directory is watched, and sealers wait.
 *
 * Thread contract: no state; a staged file belongs to the thread that adopts it. A watch is an inotify descriptor with
 * one directory: one thread waits, any may stop it. Any number of sealers wait, in any process.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include "bytes.h"
#include "contract/answers.h"
#include "contract/ends.h"
#include "contract/file.h"
#include "contract/staging.h"
#include "system.h"

enum {
    LENGTH_LEAST = HEADER - LOG_OVERHEAD,
    FRONT = AT_LAST_DELTA + 4, /* bytes of a header up to its last offset delta */
    STAMPED = AT_EPOCH + 4     /* bytes of a header up to the leader epoch: only these are written */
};

int64_t seg_restamp(int fd, int64_t end, int64_t base_offset, int32_t leader_epoch)
{
    uint8_t h[FRONT];
    if (base_offset < 0)
        return -EINVAL;
    for (int64_t at = 0; at < end;) {
        int64_t got = seg_pread(fd, h, FRONT, at);
        if (got < 0)
            return got;
        int32_t length = got < FRONT ? 0 : get32(h + AT_LENGTH);
        int32_t delta = got < FRONT ? -1 : get32(h + AT_LAST_DELTA);
        if (length < LENGTH_LEAST || length > end - at - LOG_OVERHEAD || delta < 0 || h[AT_MAGIC] != MAGIC ||
            base_offset > INT64_MAX - 1 - delta)
            return SEG_E_COLUMN;
        put64(h, base_offset);
        put32(h + AT_EPOCH, leader_epoch);
        int64_t put = seg_pwrite(fd, h, STAMPED, at);
        if (put < 0)
            return put;
        base_offset += (int64_t)delta + 1;
        at += (int64_t)length + LOG_OVERHEAD;
    }
    return base_offset;
}

int64_t seg_watch_wait(int fd, int32_t timeout_ms)
{
    uint8_t events[4096];
    struct pollfd asked = {.fd = fd, .events = POLLIN};
    int r = poll(&asked, 1, timeout_ms);
    if (r < 0)
        return errno == EINTR ? 0 : -errno;
    while (r > 0 && read(fd, events, sizeof events) > 0)
        ;
    return r > 0;
}

int64_t seg_watch_stop(int fd)
{
    return stop_watching(fd) < 0 ? -errno : 0;
}

/* The word of the published ends at which sealers wait: the format, which publications don't change. */
static const uint32_t *sealers(const uint8_t *map, int64_t len)
{
    return ((uintptr_t)map & 3) || len < SEG_ENDS_HEADER ? NULL : (const uint32_t *)(map + 12);
}

int64_t seg_await_adoption(const uint8_t *map, int64_t len, int64_t timeout_ns)
{
    const uint32_t *word = sealers(map, len);
    if (word == NULL || timeout_ns < 0)
        return -EINVAL;
    struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    uint32_t held = __atomic_load_n(word, __ATOMIC_RELAXED);
    int64_t woken = futex_wait(word, held, &timeout, SEG_OF_PROCESSES);
    return woken == 0 || errno == EAGAIN ? 0 : -errno;
}

int64_t seg_wake_sealers(const uint8_t *map, int64_t len)
{
    const uint32_t *word = sealers(map, len);
    if (word == NULL)
        return -EINVAL;
    int64_t woken = futex_wake(word, INT_MAX, SEG_OF_PROCESSES);
    return woken < 0 ? -errno : woken;
}
