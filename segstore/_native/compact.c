/* Compaction: the latest offset of every key in an open-addressing map, and batches written again without
 * superseded records (org.apache.kafka.storage.internals.log.{SkimpyOffsetMap,Cleaner},
 * org.apache.kafka.common.record.MemoryRecords.filterTo).
 *
 * Thread contract: no state; a map belongs to one caller at a time.
 */
#include <errno.h>

#include "contract/answers.h"
#include "contract/batch.h"
#include "contract/cleaner.h"
#include "reader.h"

/* --- the map ----------------------------------------------------------- */

enum {
    SLOT = 24,
    AHEAD = 16              /* keys that are hashed, and their slots fetched, before the first is looked up */
};

typedef struct slot {
    uint64_t hash[2];       /* both 0: free */
    int64_t offset;
} slot;

INLINE uint64_t rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

INLINE void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] = rotate(v[0], 32) + v[3];
    v[2] += v[1];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] = rotate(v[2], 32);
}

/* SipHash-2-4 of 128 bits (Aumasson, Bernstein): keys that collide can't be made without the seed. */
void seg_siphash(const uint8_t *p, int64_t len, const uint64_t *seed, uint64_t *hash)
{
    uint64_t v[4] = {seed[0] ^ 0x736f6d6570736575, seed[1] ^ 0x646f72616e646f6d ^ 0xee,
                     seed[0] ^ 0x6c7967656e657261, seed[1] ^ 0x7465646279746573};
    uint64_t last = (uint64_t)len << 56;
    int64_t whole = len & ~(int64_t)7;
    for (int64_t i = 0; i < whole; i += 8) {
        uint64_t word = load64le(p + i);
        v[3] ^= word;
        sip_round(v);
        sip_round(v);
        v[0] ^= word;
    }
    for (int64_t i = whole; i < len; i++)
        last |= (uint64_t)p[i] << (8 * (i - whole));
    v[3] ^= last;
    sip_round(v);
    sip_round(v);
    v[0] ^= last;
    for (int half = 0; half < 2; half++) {
        if (half)
            v[1] ^= 0xdd;
        else
            v[2] ^= 0xee;
        for (int i = 0; i < 4; i++)
            sip_round(v);
        hash[half] = v[0] ^ v[1] ^ v[2] ^ v[3];
    }
}

INLINE void hash_key(const seg_offset_map *m, const uint8_t *key, int64_t len, uint64_t hash[2])
{
    seg_siphash(key, len, m->seed, hash);
    hash[1] |= (hash[0] | hash[1]) == 0; /* 0, 0 is a free slot */
}

INLINE slot *home(const seg_offset_map *m, const uint64_t hash[2])
{
    return (slot *)m->slots + (uint64_t)(((unsigned __int128)hash[0] * (uint64_t)m->n) >> 64);
}

/* The key's slot, or a free slot for the key: there is one, as used <= limit < n. */
INLINE slot *find(const seg_offset_map *m, const uint64_t hash[2])
{
    slot *first = (slot *)m->slots, *end = first + m->n, *s = home(m, hash);
    while ((s->hash[0] | s->hash[1]) != 0 && (s->hash[0] != hash[0] || s->hash[1] != hash[1]))
        s = s + 1 == end ? first : s + 1;
    return s;
}

INLINE int is_free(const slot *s)
{
    return (s->hash[0] | s->hash[1]) == 0;
}

static int inside(int64_t arena_len, int64_t at, int64_t len)
{
    return at >= 0 && len >= 0 && at <= arena_len && len <= arena_len - at;
}

static int sound(const seg_offset_map *m)
{
    return m->n > 0 && m->used >= 0 && m->used <= m->limit && m->limit < m->n;
}

/* Hash the keys of the next records and fetch their slots. Returns their number, -1 if a key lies outside the arena. */
INLINE int hash_ahead(const seg_offset_map *m, const uint8_t *arena, int64_t arena_len,
                      const int64_t *key_at, const int64_t *key_len, int64_t left, uint64_t hashes[][2])
{
    int k = left < AHEAD ? (int)left : AHEAD;
    for (int j = 0; j < k; j++) {
        if (key_len[j] < 0)
            continue;
        if (UNLIKELY(!inside(arena_len, key_at[j], key_len[j])))
            return -1;
        hash_key(m, arena + key_at[j], key_len[j], hashes[j]);
        __builtin_prefetch(home(m, hashes[j]));
    }
    return k;
}

int64_t seg_map_put(seg_offset_map *m, const uint8_t *arena, int64_t arena_len, const int64_t *key_at,
                    const int64_t *key_len, const int64_t *offsets, int64_t n, int64_t from_offset)
{
    uint64_t hashes[AHEAD][2];
    if (!sound(m))
        return -EINVAL;
    for (int64_t i = 0; i < n;) {
        int k = hash_ahead(m, arena, arena_len, key_at + i, key_len + i, n - i, hashes);
        if (k < 0)
            return SEG_E_COLUMN;
        for (int j = 0; j < k; j++, i++) {
            if (key_len[i] < 0 || offsets[i] < from_offset)
                continue;
            slot *s = find(m, hashes[j]);
            if (is_free(s)) {
                if (m->used == m->limit)
                    return i;
                m->used++;
                memcpy(s->hash, hashes[j], sizeof s->hash);
                s->offset = offsets[i];
            } else if (offsets[i] > s->offset) {
                s->offset = offsets[i];
            }
        }
    }
    return n;
}

int64_t seg_map_keep(const seg_offset_map *m, const uint8_t *arena, int64_t arena_len, const int64_t *key_at,
                     const int64_t *key_len, const int64_t *offsets, int64_t n, int64_t latest,
                     uint8_t *keep, int64_t *keyless)
{
    uint64_t hashes[AHEAD][2];
    int64_t kept = 0;
    if (!sound(m))
        return -EINVAL;
    for (int64_t i = 0; i < n;) {
        int k = hash_ahead(m, arena, arena_len, key_at + i, key_len + i, n - i, hashes);
        if (k < 0)
            return SEG_E_COLUMN;
        for (int j = 0; j < k; j++, i++) {
            keep[i] = SEG_DROP;
            if (offsets[i] > latest) {
                keep[i] = SEG_KEEP;
            } else if (key_len[i] < 0) {
                ++*keyless;
            } else {
                const slot *s = find(m, hashes[j]);
                if (is_free(s) || offsets[i] >= s->offset)
                    keep[i] = SEG_LATEST;
            }
            kept += keep[i] != SEG_DROP;
        }
    }
    return kept;
}

/* --- batches ------------------------------------------------------------ */

typedef struct source {
    const uint8_t *arena;
    int64_t arena_len;
    const seg_columns *c;
} source;

typedef struct piece {
    const uint8_t *p;
    int64_t len, room;      /* room: bytes readable from p on */
} piece;

/* The unchanged bytes of a record's headers from their count on: 0, or SEG_E_*. */
static int64_t headers_of(const source *s, int64_t row, piece *h)
{
    int64_t at = s->c->headers_at[row], count, len;
    const uint8_t *bytes, *end = s->arena + s->arena_len;
    if (at < 0 || at >= s->arena_len)
        return SEG_E_COLUMN;
    const uint8_t *p = s->arena + at;
    *h = (piece){p, 1, end - p};
    if (LIKELY(*p == 0))
        return 0;
    int64_t r = within(careful_varint(&p, end, INT_MOST, &count));
    for (int64_t i = 0; !r && i < count; i++) {
        r = careful_bytes(&p, end, 0, &bytes, &len);
        r = r ? r : careful_bytes(&p, end, 1, &bytes, &len);
    }
    h->len = p - h->p;
    return r;
}

INLINE int64_t piece_of(const source *s, int64_t at, int64_t len, piece *b)
{
    if (UNLIKELY(len >= 0 && !inside(s->arena_len, at, len)))
        return SEG_E_COLUMN;
    *b = (piece){s->arena + at, len < 0 ? -1 : len, s->arena_len - at};
    return 0;
}

INLINE uint8_t *put_piece(uint8_t *w, const uint8_t *end, piece b)
{
    if (b.len > 0)
        copy_bytes(w, end - w, b.p, b.room, b.len);
    return w + (b.len > 0 ? b.len : 0);
}

/* Write record `row` of a batch at w; returns its bytes, or SEG_E_*. */
INLINE int64_t put_record(const source *s, int64_t row, int64_t timestamp_delta, int64_t offset_delta,
                          uint8_t *w, const uint8_t *end)
{
    piece key, value, headers;
    int64_t r;
    if ((r = piece_of(s, s->c->key_at[row], s->c->key_len[row], &key)) ||
        (r = piece_of(s, s->c->value_at[row], s->c->value_len[row], &value)) ||
        (r = headers_of(s, row, &headers)))
        return r;
    int64_t body = 1 + varint_size(timestamp_delta) + varint_size(offset_delta) + varint_size(key.len) +
        (key.len > 0 ? key.len : 0) + varint_size(value.len) + (value.len > 0 ? value.len : 0) + headers.len;
    int64_t size = varint_size(body) + body;
    if (size > end - w)
        return SEG_E_ROOM;
    w = put_varint(w, body);
    *w++ = 0;
    w = put_varint(w, timestamp_delta);
    w = put_varint(w, offset_delta);
    w = put_varint(w, key.len);
    w = put_piece(w, end, key);
    w = put_varint(w, value.len);
    w = put_piece(w, end, value);
    put_piece(w, end, headers);
    return size;
}

typedef struct verdict {
    int64_t kept, tombstones;
    int64_t largest;        /* timestamp of a kept record, ms */
    int64_t first;          /* row of the first kept record */
} verdict;

/* Decide by the batch's own delete horizon which of the rows from `row` on stay, and set keep[] to that. */
static verdict judge(const seg_batch *b, const seg_columns *c, int64_t row, uint8_t policy, int64_t now,
                     uint8_t *keep)
{
    verdict v = {.largest = -1, .first = -1};
    int spent = (b->attributes & DELETE_HORIZON) && now >= b->base_timestamp;
    for (int64_t i = row; i < row + b->count; i++) {
        int stays = policy & SEG_ALL_RECORDS || keep[i] == SEG_KEEP ||
            (keep[i] == SEG_LATEST && (c->value_len[i] >= 0 || !spent));
        stays = stays && !(policy & SEG_NO_RECORDS);
        keep[i] = stays ? SEG_KEEP : SEG_DROP;
        if (!stays)
            continue;
        if (v.kept++ == 0)
            v.first = i;
        v.tombstones += c->value_len[i] < 0;
        v.largest = c->timestamps[i] > v.largest ? c->timestamps[i] : v.largest;
    }
    return v;
}

/* Write the kept records as a batch at out: base and last offset, producer and leader epoch are the old batch's; the
 * payload is plain, with the CRC only if it stays plain. Returns its bytes, or SEG_E_*. */
static int64_t put_kept(const source *s, const seg_batch *old, int64_t row, const verdict *v,
                        const uint8_t *keep, uint8_t *out, int64_t capacity, seg_batch *b)
{
    const seg_columns *c = s->c;
    uint8_t *w = out + HEADER, *end = out + capacity;
    if (capacity < HEADER)
        return SEG_E_ROOM;
    if (!(b->attributes & DELETE_HORIZON))
        b->base_timestamp = c->timestamps[v->first];
    b->max_timestamp = b->attributes & APPEND_TIME ? old->max_timestamp : v->largest;
    b->count = (int32_t)v->kept;
    for (int64_t i = row; i < row + old->count; i++) {
        if (keep[i] == SEG_DROP)
            continue;
        int64_t delta = (int64_t)((uint64_t)c->timestamps[i] - (uint64_t)b->base_timestamp);
        int64_t size = put_record(s, i, delta, c->offsets[i] - old->base_offset, w, end);
        if (size < 0)
            return size;
        w += size;
        if (UNLIKELY(w - out > INT32_MAX))
            return SEG_E_TOO_LARGE;
    }
    b->size = (int32_t)(w - out);
    seg_put_header(out, b);
    if (!(b->attributes & CODEC_MASK))
        seg_put_crc(out, b);
    return b->size;
}

/* Write a batch without records, which keeps the producer's fields (DefaultRecordBatch.writeEmptyHeader). */
static int64_t put_empty(uint8_t *out, int64_t capacity, seg_batch *b)
{
    if (capacity < HEADER)
        return SEG_E_ROOM;
    b->attributes &= ~(CODEC_MASK | DELETE_HORIZON);
    b->base_timestamp = -1;
    b->count = 0;
    b->size = HEADER;
    seg_put_header(out, b);
    seg_put_crc(out, b);
    return HEADER;
}

static int64_t put_copy(const uint8_t *raw, uint8_t *out, int64_t capacity, const seg_batch *b)
{
    if (b->size > capacity)
        return SEG_E_ROOM;
    memcpy(out, raw, (size_t)b->size);
    return b->size;
}

/* Write batch b (a copy of old) as compaction leaves it, at out. Returns its bytes, 0 if it is removed, or SEG_E_*. */
static int64_t one_batch(const source *s, const seg_batch *old, const uint8_t *raw, int64_t row,
                         const seg_cleaning *how, uint8_t policy, uint8_t codec, uint8_t *keep, uint8_t *out,
                         int64_t capacity, seg_batch *b, uint8_t *made)
{
    *made = SEG_COPIED;
    verdict v = judge(old, s->c, row, policy, how->now, keep);
    if (v.kept == 0) {
        if (!(policy & SEG_RETAIN_EMPTY))
            return 0;
        int64_t size = put_empty(out, capacity, b);
        if (size < 0 || old->size != size || memcmp(out, raw, (size_t)size) != 0)
            *made = SEG_EMPTIED;
        return size;
    }
    int starts = (v.tombstones > 0 || policy & SEG_SPENT_MARKER) && !(old->attributes & DELETE_HORIZON);
    if (v.kept == old->count && !starts && (old->attributes & CODEC_MASK) == codec)
        return put_copy(raw, out, capacity, b);
    *made = SEG_REWRITTEN;
    b->attributes = (int16_t)((old->attributes & ~CODEC_MASK) | (codec & CODEC_MASK));
    if (starts) {
        b->attributes |= DELETE_HORIZON;
        b->base_timestamp = how->new_horizon;
    }
    return put_kept(s, old, row, &v, keep, out, capacity, b);
}

int64_t seg_compact(const uint8_t *raw, int64_t raw_len, int64_t raw_position, const uint8_t *arena,
                    int64_t arena_len, const seg_batch *batches, const uint8_t *policies,
                    const uint8_t *codecs, int64_t n, const seg_columns *columns, seg_cleaning *how,
                    uint8_t *keep, uint8_t *out, int64_t capacity, seg_batch *out_batches, uint8_t *made)
{
    source s = {arena, arena_len, columns};
    int64_t used = 0, row = 0;
    how->batches = how->records = how->changed = 0;
    for (int64_t i = 0; i < n; i++) {
        const seg_batch *old = &batches[i];
        if (old->count < 0 || old->count > columns->n - row || old->size < HEADER ||
            !inside(raw_len, old->position - raw_position, old->size))
            return SEG_E_COLUMN;
        seg_batch *b = &out_batches[how->batches];
        *b = *old;
        uint8_t *what = &made[how->batches];
        int64_t size = one_batch(&s, old, raw + (old->position - raw_position), row, how, policies[i],
                                 codecs[i], keep, out + used, capacity - used, b, what);
        if (size < 0)
            return size;
        row += old->count;
        how->changed += size == 0 || *what != SEG_COPIED;
        if (size == 0)
            continue;
        b->position = used;
        used += size;
        how->records += b->count;
        how->batches++;
    }
    return used;
}
