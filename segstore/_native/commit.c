/* Group commit: one thread syncs a log for all threads that wait for it.
 *
 * `word` is odd while a thread syncs in `seg_tail_flush`, and changes at the end of each sync, Python's too.
 * Python syncs between `seg_commit_close` and `seg_commit_open`, when no other sync is under way: the kernel
 * reports a failed sync once for each open file, and a second sync may succeed over lost pages.
 *
 * Threads that a sync has served mostly append again at once. The first of them would sync for itself alone, and
 * all others would wait for two syncs. So it lets its sync wait for them, as long as they keep coming.
 *
 * The end of a sync wakes the thread that has waited longest, which wakes the next one before it goes on: if all were
 * woken at once, they would wait for the interpreter's lock, and most would fall asleep again. A thread that
 * waits for a later sync wakes no other: the end of that sync does.
 *
 * For a shared log, the one thread that syncs for its process waits for the threads of other processes (share_sync.c),
 * and the shared log has the recovery point.
 *
 * Thread contract: any thread of the process that made the struct.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <time.h>

#include "contract/answers.h"
#include "contract/file.h"
#include "contract/log.h"
#include "contract/share_sync.h"
#include "system.h"

/* A waiting thread checks again after this time: an interrupt, or the interpreter's end, may have prevented the report
 * of a sync's end. */
static const struct timespec LONGEST = {.tv_sec = 1};

enum { MOST_PATIENCE = 250000, SECOND = 1000000000 }; /* ns */

static int is_closed(const seg_commit *c)
{
    return __atomic_load_n(&c->closed, __ATOMIC_SEQ_CST);
}

static void wake_next(const seg_commit *c)
{
    futex_wake(&c->word, 1, SEG_OF_THREADS);
}

/* 0 once the word has changed; SEG_SLOW after a second; -EINTR for a signal. */
static int64_t await(seg_commit *c, uint32_t word)
{
    int64_t failed;
    __atomic_fetch_add(&c->waiting, 1, __ATOMIC_RELAXED); /* `tell` resets the count */
    do
        failed = futex_wait(&c->word, word, &LONGEST, SEG_OF_THREADS);
    while (!failed && __atomic_load_n(&c->word, __ATOMIC_SEQ_CST) == word);
    if (!failed)
        wake_next(c);
    if (!failed || errno == EAGAIN)
        return 0;
    __atomic_fetch_sub(&c->waiting, 1, __ATOMIC_RELAXED);
    return errno == EINTR ? -EINTR : SEG_SLOW;
}

/* Report the end of a sync; n makes the word even. */
static void tell(seg_commit *c, uint32_t n)
{
    __atomic_store_n(&c->served, __atomic_exchange_n(&c->waiting, 0, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    __atomic_fetch_add(&c->word, n, __ATOMIC_SEQ_CST);
    wake_next(c);
}

int64_t seg_commit_wait(seg_commit *c)
{
    uint32_t word = __atomic_load_n(&c->word, __ATOMIC_SEQ_CST);
    if (!(word & 1) && !is_closed(c))
        return 0;
    int64_t code = await(c, word);
    return code ? code : 1;
}

int64_t seg_commit_close(seg_commit *c)
{
    __atomic_store_n(&c->closed, 1, __ATOMIC_SEQ_CST);
    for (;;) {
        uint32_t word = __atomic_load_n(&c->word, __ATOMIC_SEQ_CST);
        if (!(word & 1))
            return 0;
        if (await(c, word) == -EINTR)
            return -EINTR;
    }
}

void seg_commit_open(seg_commit *c)
{
    __atomic_store_n(&c->closed, 0, __ATOMIC_SEQ_CST);
    tell(c, 2);
}

int64_t seg_tail_close_syncs(seg_tail *t)
{
    int64_t code = seg_commit_close(t->commit);
    return code || !t->share ? code : seg_share_sync_begin(t->share);
}

void seg_tail_open_syncs(seg_tail *t, int64_t synced, int32_t failed)
{
    if (t->share)
        seg_share_sync_end(t->share, synced, failed);
    seg_commit_open(t->commit);
}

/* --- syncs ------------------------------------------------------------------ */

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * SECOND + now.tv_nsec;
}

/* Wait until as many threads wait for this sync as for the last one; returns whether they do. The wait ends if no
 * thread has come for the patience: half of a sync's time, and a quarter of it after a wait in vain. */
static int gather(const seg_commit *c)
{
    int32_t seen = 0, wanted = __atomic_load_n(&c->served, __ATOMIC_RELAXED);
    int64_t since = wanted > 0 ? clock_ns() : 0;
    while (seen < wanted && clock_ns() - since < c->patience && !is_closed(c)) {
        int32_t waiting = __atomic_load_n(&c->waiting, __ATOMIC_RELAXED);
        if (waiting > seen) {
            seen = waiting;
            since = clock_ns();
        }
        sched_yield();
    }
    return seen >= wanted;
}

static void set_patience(seg_commit *c, int64_t took, int all)
{
    int64_t share = took / (all ? 2 : 4);
    c->patience = share < MOST_PATIENCE ? share : MOST_PATIENCE;
}

/* Sync a shared log, or have another process sync it. */
static int64_t sync_shared(const seg_share *s, seg_commit *c, int32_t fd, seg_syncer sync, int64_t upto, int all)
{
    int64_t began = clock_ns(), code = seg_share_flush(s, fd, sync, upto);
    __atomic_store_n(&c->synced, __atomic_load_n(&s->log->synced, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    set_patience(c, clock_ns() - began, all);
    return code == 0 || code == -EINTR ? code : SEG_SLOW;
}

/* Sync the log of a tail up to its end, by the thread that has made the word odd: no other closes the descriptor before
 * its end. 0; SEG_SLOW if the sync failed, the log ends below `upto`, or the tail was paused before; 1 if the tail was
 * paused during the sync: the new recovery point is not published. */
static int64_t sync_log(seg_tail *t, seg_commit *c, int64_t upto)
{
    int all = gather(c);
    int32_t fd;
    seg_syncer sync;
    seg_share shared;
    int64_t told, end = seg_tail_to_sync(t, &fd, &sync, &shared), began = clock_ns();
    if (end < 0)
        return SEG_SLOW;
    if (t->share)
        return sync_shared(&shared, c, fd, sync, upto, all);
    int64_t code = sync ? sync(fd, c->failed) : seg_fdatasync(fd, c->failed);
    set_patience(c, clock_ns() - began, all);
    if (code < 0 && code != SEG_SLOW)
        *c->failed = (int32_t)-code;
    if (code < 0)
        return SEG_SLOW;
    __atomic_store_n(&c->synced, end, __ATOMIC_SEQ_CST);
    do
        told = seg_tail_synced(t, end);
    while (told == -EINTR);
    return end < upto ? SEG_SLOW : !told;
}

int64_t seg_tail_syncs(const seg_tail *t)
{
    if (!t->owner[0] || !__atomic_load_n(&t->open, __ATOMIC_ACQUIRE))
        return 0;
    if (*t->commit->failed || is_closed(t->commit))
        return 0;
    return t->share || __atomic_load_n(&t->names, __ATOMIC_ACQUIRE) == t->synced_names;
}

static int64_t synced_of(const seg_tail *t)
{
    return __atomic_load_n(t->share ? &t->share->log->synced : &t->commit->synced, __ATOMIC_SEQ_CST);
}

int64_t seg_tail_flush(seg_tail *t, int64_t upto)
{
    while (seg_tail_syncs(t)) {
        seg_commit *c = t->commit;
        uint32_t word = __atomic_load_n(&c->word, __ATOMIC_SEQ_CST);
        int64_t code = 0;
        if (synced_of(t) >= upto) {
            if (t->share) /* another process has synced: callers read `synced` */
                __atomic_store_n(&c->synced, upto, __ATOMIC_RELAXED);
            return 0;
        }
        if (word & 1) {
            code = await(c, word);
        } else if (__atomic_compare_exchange_n(&c->word, &word, word + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            /* A thread that closes it now waits for the word; an earlier close is seen here. */
            code = is_closed(c) ? 0 : sync_log(t, c, upto);
            tell(c, 1);
        }
        if (code)
            return code;
    }
    return SEG_SLOW;
}
