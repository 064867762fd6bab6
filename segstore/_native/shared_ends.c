/* The ends of shared logs, for readers (rule E5 of docs/shared.md).
 *
 * One word of a log, `current`, names the record of its end. A current record is never changed: a reader that loads the
 * same word before and after its copy of the record has one end, of one moment. Turns never repeat, so the same word
 * means the same end. No dead writer leaves a state in which a reader must wait.
 *
 * A host swaps the ends of several logs as one: it writes each next word (`pending`), then stores their number in the
 * header (`together`), which decides the swap. No other process may swap these logs until the swap is done, and the
 * next host finishes a dead host's swap. So from that store on, the next word counts.
 *
 * Thread contract: any threads of any processes; only seg_shared_count writes to the mapping. Loads acquire, and stores
 * to a record release: a reader that sees a word of a record that is being filled again finds another `current`.
 */
#include <errno.h>
#include <string.h>

#include "contract/ends.h"
#include "contract/shared_ends.h"
#include "step.h"

enum { WORDS = sizeof(seg_shared_end) / 8, TURN = 16 };

_Static_assert(sizeof(seg_shared_end) == 192, "a record's size is part of the format");
_Static_assert(sizeof(seg_shared_log) <= SEG_SHARED_LOG && sizeof(seg_shared_header) <= SEG_SHARED_MEMBERS_AT, "rooms");

static int64_t load(const int64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* The word that counts as current; `header` may be NULL if no process swaps several logs. */
static uint64_t word_of(const seg_shared_header *header, const seg_shared_log *log, uint64_t current)
{
    int64_t together = header ? load(&header->together) : 0;
    if (!together || load(&log->pending_of) != together)
        return current;
    uint64_t pending = __atomic_load_n(&log->pending, __ATOMIC_ACQUIRE);
    /* `pending` belongs to that number only as long as the number stands. After that the log was swapped. */
    return load(&header->together) == together && pending >> TURN > current >> TURN ? pending : current;
}

static int now(const seg_shared_header *header, const seg_shared_log *log, seg_shared_end *out)
{
    int64_t copy[WORDS];
    for (uint64_t current = __atomic_load_n(&log->current, __ATOMIC_ACQUIRE);;) {
        uint64_t word = word_of(header, log, current), seat = word >> 8 & 0xff, which = word & 0xff;
        if (!word || seat >= SEG_SEATS || which > 1)
            return 0;
        const int64_t *record = (const int64_t *)(log->ends + 2 * seat + which);
        for (int i = 0; i < WORDS; i++)
            copy[i] = load(record + i);
        uint64_t again = __atomic_load_n(&log->current, __ATOMIC_ACQUIRE);
        if (again == current)
            break;
        current = again;
    }
    memcpy(out, copy, sizeof copy);
    return 1;
}

int64_t seg_shared_now(const seg_shared_log *log, seg_shared_end *out)
{
    return now(NULL, log, out);
}

/* The log with this number, if it belongs to that partition; else NULL. */
static const seg_shared_log *log_of(const uint8_t *shared, int64_t len, int64_t slot, int64_t key)
{
    const seg_shared_header *header = (const seg_shared_header *)shared;
    if (((uintptr_t)shared & 7) != 0 || slot < 0 || len < SEG_SHARED_LOGS || slot >= (len - SEG_SHARED_LOGS) / SEG_SHARED_LOG)
        return NULL;
    const seg_shared_log *log = (const seg_shared_log *)(shared + SEG_SHARED_LOGS + slot * SEG_SHARED_LOG);
    return key && __atomic_load_n(&header->live, __ATOMIC_ACQUIRE) && load(&log->key) == key ? log : NULL;
}

int64_t seg_shared_ends(const uint8_t *shared, int64_t len, int64_t slot, int64_t *values)
{
    const seg_shared_log *log = log_of(shared, len, slot, values[0]);
    if (!log)
        return 0;
    /* The recovery point is read first, so that it is not above the end. */
    int64_t synced = load(&log->synced);
    seg_shared_end end;
    if (!now((const seg_shared_header *)shared, log, &end) || load(&log->key) != values[0])
        return 0;
    values[1] = end.start_offset;
    values[2] = values[3] = end.end.next_offset;
    values[4] = end.stable_offset < 0 ? end.end.next_offset : end.stable_offset;
    values[5] = __atomic_load_n(&log->failed, __ATOMIC_ACQUIRE) ? ~synced : synced;
    values[6] = (uint32_t)end.layout;
    values[7] = (int32_t)end.leader_epoch;
    return 1;
}

/* Copy a sealed end of one moment; returns whether it is final and its file still has its name. */
static int sealed_end(const seg_sealed *s, int64_t *found)
{
    for (;;) {
        uint64_t owner = __atomic_load_n(&s->owner, __ATOMIC_ACQUIRE);
        int64_t generation = load(&s->generation), is_replaced = load(&s->is_replaced);
        found[0] = load(&s->base_offset);
        found[1] = load(&s->position);
        if (__atomic_load_n(&s->owner, __ATOMIC_ACQUIRE) == owner && load(&s->generation) == generation)
            return owner && generation != INT64_MAX && !is_replaced;
    }
}

int64_t seg_shared_sealed(const uint8_t *shared, int64_t len, int64_t slot, int64_t key, int64_t *found)
{
    const seg_shared_log *log = log_of(shared, len, slot, key);
    int64_t n = 0, one[2];
    for (int i = 0; log && i < SEG_SEALED; i++)
        if (sealed_end(log->sealed + i, one))
            memcpy(found + 2 * n++, one, sizeof one);
    return log && load(&log->key) == key ? n : 0;
}

int64_t seg_shared_count(uint8_t *ends, int64_t len, uint8_t *shared)
{
    if (((uintptr_t)ends & 7) != 0 || len < SEG_ENDS_HEADER)
        return -EINVAL;
    __atomic_fetch_add(&((seg_shared_header *)shared)->appends, 1, __ATOMIC_RELEASE);
    __atomic_fetch_add((uint32_t *)(ends + 8), 1, __ATOMIC_RELEASE);
    SEG_STEP(COUNTED);
    return seg_wake(ends, len);
}
