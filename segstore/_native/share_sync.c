/* Group commit of a shared log: one thread of one member, the leader, syncs it for all that wait (rules S1 to S3 of
 * docs/shared.md).
 *
 * The leader owns `sync_lock` as an appender owns `lock`, but waiters sleep at `sync_word`, which changes at the end of
 * each sync. All waiters are woken then, because a stopped member must not delay the others; in one process only one
 * thread waits here (commit.c). As in commit.c, a sync waits for members that the last one has served.
 *
 * Before a sync the leader notes its end offset in `sync_from`; after it, the result, and then it removes the note and
 * releases the lock. A note without a leader means that the leader has died: the kernel may have reported a failed
 * write to that process alone, since it reports nothing to a descriptor that was opened later. So the next leader first
 * writes the bytes above the recovery point again: then the pages are dirty, and the next sync reports their errors.
 * Bytes below the log's end are never changed or cut, so they are written again without the log's lock.
 *
 * The host does not wait for its turn: it sets SEG_WAITED in the leader's word, and the leader then leaves only this
 * bit. Members leave such a word to the host, for as long as they would wait for a dead host.
 *
 * Thread contract: any thread of the member's process; in a host, one thread at a time is between begin and end. In a
 * forked child of that process no call changes anything.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "contract/answers.h"
#include "contract/batch.h"
#include "contract/file.h"
#include "contract/share_lock.h"
#include "contract/share_sync.h"
#include "contract/shared_ends.h"
#include "share_lock.h"
#include "step.h"
#include "system.h"

enum { MOST_PATIENCE = 250000, SECOND = 1000000000, NS_OF_MS = 1000000 }; /* ns */
enum { CHUNK = 1 << 20, HEADERS = 128 };
enum { NOT_ENDED = -1 };

#define LOAD(word) __atomic_load_n(&(word), __ATOMIC_SEQ_CST)
#define STORE(word, value) __atomic_store_n(&(word), value, __ATOMIC_SEQ_CST)

/* Whether a sync of this tail's file makes the log durable up to its end, *now. The end is read first: a change of
 * other files is noted before the end moves beyond it (seg_share_sync_more). */
static int is_ours(const seg_share *s, seg_shared_end *now)
{
    return LOAD(s->log->key) == s->key && seg_shared_now(s->log, now) && now->generation == s->generation &&
        LOAD(s->log->by_log_only) == s->generation;
}

int64_t seg_share_is_due(const seg_share *s, int64_t end, int64_t messages)
{
    return messages > 0 && end - __atomic_load_n(&s->log->synced, __ATOMIC_RELAXED) >= messages;
}

/* --- the word ------------------------------------------------------------------- */

/* Whether the word may be taken from its owner. `in_vain` is the word after a wait in vain, or 0. */
static int is_free(const seg_share *s, int32_t who, uint64_t word, uint64_t in_vain)
{
    uint64_t owner = word & ~(uint64_t)SEG_WAITED;
    if (word == 0)
        return 1;
    if (owner == 0)
        return who == SEG_OF_HOST || word == in_vain; /* the word is kept for the host */
    if (who == SEG_OF_HOST && owner == seg_lock_word(s->member, who))
        return 1; /* an interrupt has left the word */
    if (owner != (in_vain & ~(uint64_t)SEG_WAITED) || (seg_lock_who(owner) == SEG_OF_HOST && who != SEG_OF_HOST))
        return 0;
    return (int)seg_lock_is_dead(s->member, owner);
}

static int take(const seg_share *s, int32_t who, uint64_t in_vain)
{
    uint64_t word = LOAD(s->log->sync_lock);
    return is_free(s, who, word, in_vain) &&
        __atomic_compare_exchange_n(&s->log->sync_lock, &word, seg_lock_word(s->member, who), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* Whether the owner is a dead host, so that only the next host can take the word. */
static int is_dead_host(const seg_share *s, uint64_t word)
{
    return word && (word & ~(uint64_t)SEG_WAITED) && seg_lock_who(word) == SEG_OF_HOST && seg_lock_is_dead(s->member, word);
}

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * SECOND + now.tv_nsec;
}

/* Wait for the end of a sync; the call began at `begun`: 0, and *in_vain is the word of its leader after a wait in
 * vain; -EINTR for a signal, and also after a second, because a signal may have come between two waits. */
static int64_t await(const seg_share *s, uint32_t seen, int64_t begun, uint64_t *in_vain)
{
    seg_shared_log *l = s->log;
    struct timespec look = {.tv_sec = s->member->look_ms / 1000, .tv_nsec = (long)(s->member->look_ms % 1000) * NS_OF_MS};
    uint64_t word = LOAD(l->sync_lock);
    int64_t failed;
    *in_vain = 0;
    __atomic_fetch_add(&l->sync_waiting, 1, __ATOMIC_RELAXED); /* `tell` resets the count */
    do
        failed = futex_wait(&l->sync_word, seen, &look, SEG_OF_PROCESSES);
    while (!failed && LOAD(l->sync_word) == seen);
    if (!failed || errno == EAGAIN)
        return 0;
    int why = errno;
    __atomic_fetch_sub(&l->sync_waiting, 1, __ATOMIC_RELAXED);
    if (why == EINTR || clock_ns() - begun > SECOND)
        return -EINTR;
    *in_vain = word;
    return 0;
}

/* Release the word, and report the end of a sync. */
static void tell(const seg_share *s, int32_t who)
{
    seg_shared_log *l = s->log;
    uint64_t mine = seg_lock_word(s->member, who), word = mine;
    __atomic_store_n(&l->sync_served, __atomic_exchange_n(&l->sync_waiting, 0, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    while ((word & ~(uint64_t)SEG_WAITED) == mine &&
           !__atomic_compare_exchange_n(&l->sync_lock, &word, word & SEG_WAITED, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    __atomic_fetch_add(&l->sync_word, 1, __ATOMIC_SEQ_CST);
    futex_wake(&l->sync_word, INT_MAX, SEG_OF_PROCESSES);
}

/* --- after a leader that has died -------------------------------------------------- */

/* Write whole batches from a position on again, as many as `bytes` has room for. Returns their bytes; 0: the first
 * batch needs *room bytes; -errno. */
static int64_t write_some(int32_t fd, uint8_t *bytes, int64_t *room, int64_t position, int64_t end)
{
    seg_batch headers[HEADERS];
    seg_scan_end stop;
    int64_t wanted = *room < end - position ? *room : end - position;
    int64_t there = seg_pread(fd, bytes, wanted, position);
    if (there < wanted)
        return there < 0 ? there : -EIO;
    seg_scan(bytes, there, position, -1, 0, INT64_MAX, INT64_MAX, 1, headers, HEADERS, &stop);
    int64_t whole = stop.position - position;
    if (whole > 0)
        return seg_pwrite(fd, bytes, whole, position);
    if (stop.status != SEG_SHORT || stop.need <= *room || stop.need > end - position)
        return -EIO;
    *room = stop.need;
    return 0;
}

static int64_t write_from(int32_t fd, int64_t position, int64_t end)
{
    int64_t done = 0, room = end - position < CHUNK ? end - position : CHUNK;
    uint8_t *bytes = NULL;
    while (position < end && done >= 0) {
        if (done == 0) {
            free(bytes);
            if ((bytes = malloc((size_t)room)) == NULL)
                return -ENOMEM;
        }
        done = write_some(fd, bytes, &room, position, end);
        position += done > 0 ? done : 0;
    }
    free(bytes);
    return done < 0 ? done : 0;
}

int64_t seg_write_again(int32_t fd, int64_t offset, int64_t position, int64_t end)
{
    seg_batch first = {.position = position};
    int64_t found = position >= 0 ? 1 : seg_seek(fd, 0, end, offset, &first);
    if (found <= 0)
        return found <= -10100 ? -EIO : found;
    return write_from(fd, first.position, end);
}

/* --- syncs ------------------------------------------------------------------------ */

/* Wait until as many members wait for this sync as for the last one, as `gather` of commit.c; returns whether they
 * do. */
static int gather(seg_shared_log *l)
{
    int32_t seen = 0, wanted = (int32_t)__atomic_load_n(&l->sync_served, __ATOMIC_RELAXED);
    int64_t since = wanted > 0 ? clock_ns() : 0, patience = __atomic_load_n(&l->patience, __ATOMIC_RELAXED);
    if (patience > MOST_PATIENCE)
        patience = MOST_PATIENCE;
    while (seen < wanted && clock_ns() - since < patience && !(LOAD(l->sync_lock) & SEG_WAITED)) {
        int32_t waiting = (int32_t)__atomic_load_n(&l->sync_waiting, __ATOMIC_RELAXED);
        if (waiting > seen) {
            seen = waiting;
            since = clock_ns();
        }
        sched_yield();
    }
    return seen >= wanted;
}

/* The position of the first byte that may not be durable; -1: not known. */
static int64_t unsynced_from(const seg_shared_log *l, const seg_shared_end *now)
{
    if (LOAD(l->synced) <= now->end.base_offset)
        return 0;
    return LOAD(l->synced_offset) == LOAD(l->synced) ? LOAD(l->synced_position) : -1;
}

/* Note that the log is durable up to a record's end. A death in between leaves a position that is ignored. */
static void note(seg_shared_log *l, const seg_shared_end *now)
{
    STORE(l->synced_offset, -1);
    STORE(l->synced_position, now->end.position);
    STORE(l->synced_offset, now->end.next_offset);
    if (now->end.next_offset > LOAD(l->synced))
        STORE(l->synced, now->end.next_offset);
}

static void note_failed(seg_shared_log *l, int64_t error)
{
    STORE(l->failed, error == -EINTR ? EIO : (int32_t)-error);
    STORE(l->sync_from, NOT_ENDED);
}

/* Sync the log up to its end, by the owner of the word: 0: check again; SEG_SLOW: the host must sync. */
static int64_t sync_log(const seg_share *s, int32_t fd, seg_syncer sync, int64_t upto)
{
    seg_shared_log *l = s->log;
    seg_shared_end now;
    if (LOAD(l->synced) >= upto || LOAD(l->failed))
        return 0;
    int all = gather(l);
    if (!is_ours(s, &now))
        return SEG_SLOW;
    int64_t code = LOAD(l->sync_from) == NOT_ENDED ? 0 : seg_write_again(fd, LOAD(l->synced), unsynced_from(l, &now), now.end.position);
    if (code == -ENOMEM)
        return SEG_SLOW;
    if (code == 0) {
        int32_t failed = 0;
        int64_t began = clock_ns();
        STORE(l->sync_from, now.end.next_offset);
        SEG_STEP(SYNCING);
        code = sync ? sync(fd, &failed) : seg_fdatasync(fd, &failed);
        SEG_STEP(SYNCED);
        int64_t share = (clock_ns() - began) / (all ? 2 : 4);
        __atomic_store_n(&l->patience, share < MOST_PATIENCE ? share : MOST_PATIENCE, __ATOMIC_RELAXED);
        code = failed ? -failed : code;
    }
    if (code < 0 && code != SEG_SLOW) {
        note_failed(l, code);
        return 0;
    }
    if (code == 0)
        note(l, &now);
    STORE(l->sync_from, NOT_ENDED);
    return code;
}

int64_t seg_share_flush(const seg_share *s, int32_t fd, seg_syncer sync, int64_t upto)
{
    seg_shared_log *l = s->log;
    int64_t begun = clock_ns();
    uint64_t in_vain = 0;
    seg_shared_end now;
    while (s->member->here[0]) {
        uint32_t word = LOAD(l->sync_word);
        int32_t failed = LOAD(l->failed);
        int64_t code;
        if (LOAD(l->key) == s->key && LOAD(l->synced) >= upto)
            return 0;
        if (failed)
            return -failed;
        if (!is_ours(s, &now) || now.end.next_offset < upto)
            return SEG_SLOW;
        if (take(s, s->who, in_vain)) {
            code = sync_log(s, fd, sync, upto);
            tell(s, s->who);
            in_vain = 0;
        } else {
            code = is_dead_host(s, in_vain) ? SEG_SLOW : await(s, word, begun, &in_vain);
        }
        if (code)
            return code;
    }
    return SEG_SLOW;
}

/* --- by the host --------------------------------------------------------------------- */

/* Have the leader keep the word for the host. */
static void ask_for(seg_shared_log *l)
{
    uint64_t word = LOAD(l->sync_lock);
    if (word && !(word & SEG_WAITED))
        __atomic_compare_exchange_n(&l->sync_lock, &word, word | SEG_WAITED, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

int64_t seg_share_sync_begin(const seg_share *s)
{
    int64_t begun = clock_ns();
    for (uint64_t in_vain = 0; s->member->here[0];) {
        uint32_t word = LOAD(s->log->sync_word);
        if (take(s, SEG_OF_HOST, in_vain))
            return LOAD(s->log->sync_from) != NOT_ENDED;
        ask_for(s->log);
        int64_t code = await(s, word, begun, &in_vain);
        if (code)
            return code;
    }
    return 0;
}

void seg_share_sync_note(const seg_share *s, int64_t upto)
{
    STORE(s->log->sync_from, upto);
}

void seg_share_sync_end(const seg_share *s, int64_t synced, int32_t failed)
{
    seg_shared_log *l = s->log;
    if (!s->member->here[0] || !seg_lock_is_mine(s->member, &l->sync_lock, SEG_OF_HOST))
        return;
    if (failed)
        STORE(l->failed, failed);
    else if (synced > LOAD(l->synced))
        STORE(l->synced, synced);
    if (failed || synced >= 0)
        STORE(l->sync_from, NOT_ENDED);
    tell(s, SEG_OF_HOST);
}

int64_t seg_share_sync_less(const seg_share *s, int64_t changes, int64_t generation)
{
    int64_t seen = LOAD(s->log->by_log_only);
    if (generation < 0) /* the log was not opened yet; its opening allows this */
        return 0;
    return (seen >= 0 || seen == -1 - changes) &&
        __atomic_compare_exchange_n(&s->log->by_log_only, &seen, generation, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

void seg_share_sync_more(const seg_share *s, int64_t changes)
{
    STORE(s->log->by_log_only, -1 - changes);
}
