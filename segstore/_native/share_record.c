/* Records of a shared log and their seats, and the cut of bytes that a dead owner has left beyond the end.
 *
 * Thread contract: that of share.c.
 */
#define _GNU_SOURCE
#include "share_record.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "contract/share_lock.h"
#include "step.h"

static int has_sealed(const seg_shared_log *log, uint64_t owner)
{
    for (int i = 0; i < SEG_SEALED; i++)
        if (__atomic_load_n(&log->sealed[i].owner, __ATOMIC_ACQUIRE) == owner)
            return 1;
    return 0;
}

int32_t seg_record_seat(seg_share *s, uint64_t current)
{
    seg_shared_log *log = s->log;
    uint64_t mine = seg_lock_word(s->member, s->who);
    if (__atomic_load_n(&log->seats[s->seat], __ATOMIC_ACQUIRE) == mine)
        return s->seat;
    int32_t other = -1;
    uint64_t owner = 0;
    for (int32_t i = 0; i < SEG_SEATS; i++) {
        uint64_t held = __atomic_load_n(&log->seats[i], __ATOMIC_ACQUIRE);
        if (held == mine)
            return s->seat = i;
        int is_current = current && i == (int32_t)((current >> 8) & (SEG_SEATS - 1));
        if (!is_current && !(held && has_sealed(log, held)) && (other < 0 || (owner && !held))) {
            other = i;
            owner = held;
        }
    }
    if (other < 0 || !__atomic_compare_exchange_n(&log->seats[other], &owner, mine, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return -1;
    return s->seat = other;
}

uint64_t seg_record_next(seg_share *s, uint64_t current)
{
    while (seg_record_seat(s, current) < 0) {
    }
    return own_word(s, current);
}

void seg_record_tear(seg_shared_log *log)
{
    uint32_t torn = __atomic_load_n(&log->torn, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(&log->torn, &torn, (torn + 2) | 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
}

int64_t seg_record_cut(int32_t fd, int64_t position)
{
    struct stat found;
    SEG_STEP(REPAIR);
    if (SEG_HAS_BUG(NO_CUT))
        return 0;
    int failed = fstat(fd, &found) < 0 || (found.st_size > position && ftruncate(fd, position) < 0);
    int64_t error = failed ? -errno : 0;
    SEG_STEP(CUT);
    return error;
}

int64_t seg_record_mend(seg_shared_log *log, uint32_t torn, int32_t fd, int64_t position)
{
    int64_t error = torn & 1 ? seg_record_cut(fd, position) : 0;
    if ((torn & 1) && !error)
        __atomic_compare_exchange_n(&log->torn, &torn, torn & ~1u, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    return error;
}
