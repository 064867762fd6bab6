/* The members of a store: their liveness, and their requests to its host (rules L2, V1 to V3 of docs/shared.md).
 *
 * A member holds an open-file-description lock on the byte of its slot in `.segstore/members`. The kernel releases the
 * lock when the last thread of the process is gone. No pids are used, so members may live in several pid namespaces; a
 * stopped member counts as living.
 *
 * A request lies in its member's slot. Its number is stored with its state, so that the answer to an earlier request,
 * or to an earlier process in that slot, is not taken for the answer to this request.
 *
 * Thread contract: of one member one thread at a time joins, and one at a time posts requests; one thread of a host
 * answers.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "contract/members.h"
#include "step.h"
#include "system.h"

enum { STATES = 3 };        /* the bits of a request's state */

/* Members of all versions know the place of each part by SEG_SHARED_FORMAT. */
_Static_assert(sizeof(seg_shared_header) <= SEG_SHARED_MEMBERS_AT, "the header reaches into the members");
_Static_assert(sizeof(seg_shared_member) == 256, "a member");
_Static_assert(SEG_SHARED_MEMBERS_AT + SEG_MEMBERS * sizeof(seg_shared_member) <= SEG_SHARED_LOGS, "the members");
_Static_assert(sizeof(seg_shared_end) == 192, "an end");
_Static_assert(sizeof(seg_shared_log) <= SEG_SHARED_LOG, "a log");
_Static_assert(SEG_MEMBERS <= SEG_MAKING_BYTE, "the byte for making is no member's");

static seg_shared_member *member_of(const seg_member *m, int32_t slot)
{
    return (seg_shared_member *)(m->map + SEG_SHARED_MEMBERS_AT) + slot;
}

static struct flock byte_of(short type, int32_t at)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
}

int64_t seg_member_is_dead(const seg_member *m, int32_t slot, uint32_t incarnation)
{
    struct flock asked = byte_of(F_WRLCK, slot);
    struct stat file;
    if (slot < 0 || slot >= SEG_MEMBERS || __atomic_load_n(&member_of(m, slot)->incarnation, __ATOMIC_ACQUIRE) != incarnation)
        return 1; /* another process has taken the slot, so its earlier owner is dead */
    if (slot == m->slot || fcntl(m->members_fd, F_OFD_GETLK, &asked) || asked.l_type != F_UNLCK)
        return 0;
    /* If the descriptor's number belongs to another file after a foreign close (closerange), this process has no
     * lock. */
    return fstat(m->members_fd, &file) == 0 && file.st_dev == m->members_device && file.st_ino == m->members_inode;
}

int64_t seg_member_join(seg_member *m, int32_t most)
{
    struct stat file;
    if (fstat(m->members_fd, &file))
        return -errno;
    m->members_device = file.st_dev;
    m->members_inode = file.st_ino;
    for (int32_t slot = 0; slot < most && slot < SEG_MEMBERS; slot++) {
        struct flock wanted = byte_of(F_WRLCK, slot);
        if (fcntl(m->members_fd, F_OFD_SETLK, &wanted)) {
            if (errno != EAGAIN && errno != EACCES)
                return -errno;
            continue;
        }
        seg_shared_member *s = member_of(m, slot);
        m->slot = slot;
        m->incarnation = __atomic_load_n(&s->incarnation, __ATOMIC_ACQUIRE) + 1;
        /* The number continues: an answer to the slot's last process must not fit our request. */
        uint32_t number = __atomic_load_n(&s->request, __ATOMIC_ACQUIRE) & ~(uint32_t)STATES;
        __atomic_store_n(&s->request, number | SEG_EMPTY, __ATOMIC_RELEASE);
        __atomic_store_n(&s->incarnation, m->incarnation, __ATOMIC_RELEASE);
        return slot;
    }
    return -EUSERS;
}

int64_t seg_shared_wait(const uint32_t *word, uint32_t seen, int64_t timeout_ms)
{
    struct timespec timeout = {.tv_sec = timeout_ms / 1000, .tv_nsec = (timeout_ms % 1000) * 1000000};
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != seen)
        return 0;
    if (futex_wait(word, seen, &timeout, SEG_OF_PROCESSES) == 0 || errno == EAGAIN)
        return 0;
    return -errno;
}

void seg_shared_ring(uint32_t *word)
{
    __atomic_fetch_add(word, 1, __ATOMIC_RELEASE);
    futex_wake(word, INT_MAX, SEG_OF_PROCESSES);
}

static int64_t clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* --- requests ---------------------------------------------------------------------- */

int64_t seg_request_post(seg_member *m, int32_t asks)
{
    seg_shared_member *s = member_of(m, m->slot);
    uint32_t number = (__atomic_load_n(&s->request, __ATOMIC_RELAXED) & ~(uint32_t)STATES) + STATES + 1;
    s->asks = asks;
    s->answer = s->error = 0;
    s->text[0] = 0;
    __atomic_store_n(&s->request, number | SEG_ASKED, __ATOMIC_RELEASE);
    seg_shared_ring(&((seg_shared_header *)m->map)->bell);
    SEG_STEP(ASKED);
    return number;
}

int64_t seg_request_await(seg_member *m, int64_t number, int64_t timeout_ms)
{
    const uint32_t *request = &member_of(m, m->slot)->request;
    /* The wait also wakes when the host notes that it has taken the request. */
    for (int64_t now = clock_ms(), end = now + timeout_ms;; now = clock_ms()) {
        uint32_t seen = __atomic_load_n(request, __ATOMIC_ACQUIRE);
        if (seen == ((uint32_t)number | SEG_DONE))
            return 0;
        if (now >= end)
            return -ETIMEDOUT;
        if (seg_shared_wait(request, seen, end - now) == -EINTR)
            return -EINTR;
    }
}

void seg_request_forget(seg_member *m, int64_t number)
{
    __atomic_store_n(&member_of(m, m->slot)->request, (uint32_t)number | SEG_EMPTY, __ATOMIC_RELEASE);
}

int64_t seg_request_next(seg_member *m, int32_t from, uint32_t *number)
{
    for (int32_t slot = from; slot < SEG_MEMBERS; slot++) {
        uint32_t *request = &member_of(m, slot)->request, now = __atomic_load_n(request, __ATOMIC_ACQUIRE);
        uint32_t taken = (now & ~(uint32_t)STATES) | SEG_TAKEN;
        /* SEG_TAKEN: by a dead host, because there is only one host. */
        if (now == taken ||
            ((now & STATES) == SEG_ASKED && __atomic_compare_exchange_n(request, &now, taken, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))) {
            *number = taken;
            return slot;
        }
    }
    return -1;
}

int64_t seg_request_answer(seg_member *m, int32_t slot, uint32_t number, int32_t answer, int32_t error, const char *text)
{
    seg_shared_member *s = member_of(m, slot);
    s->answer = answer;
    s->error = error;
    strncpy(s->text, text, sizeof s->text - 1);
    s->text[sizeof s->text - 1] = 0;
    if (!__atomic_compare_exchange_n(&s->request, &number, (number & ~(uint32_t)STATES) | SEG_DONE, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return 0;
    futex_wake(&s->request, INT_MAX, SEG_OF_PROCESSES);
    SEG_STEP(ANSWERED);
    return 1;
}
