/* Requests that say the same as an earlier one of their connection: one call receives such a request, does what it
 * asks for, and sends the answer.
 *
 * What is not like the earlier request, or can't be done by the short way, is received only: SEG_SLOW. The socket
 * is not waited for. Thread contract: one call at a time for a seg_exchange.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/socket.h>

#include "bytes.h"
#include "clock.h"
#include "contract/answers.h"
#include "contract/batch.h"
#include "contract/exchange.h"
#include "contract/file.h"
#include "contract/log.h"
#include "contract/rules.h"
#include "contract/segment.h"
#include "contract/transfer.h"
#include "counts.h"

enum {
    SIZE = 4,               /* an int32 before each request and each answer */
    NUMBER = 4,             /* the correlation id, an int32: here in requests, and behind the size in answers */
    BEHIND_NUMBER = 8,
    TAGS = 3,               /* of a partition, its topic and the body, none of which has any */
    VARINT = 5,             /* bytes of the longest one */
    SHIFT = 7
};

/* Receive what has come. The request, without its size, if exactly one whole request is there; else NULL. */
static uint8_t *receive(int sock, seg_exchange *x)
{
    ssize_t got = recv(sock, x->room, (size_t)x->room_len, MSG_DONTWAIT);
    x->received = got < 0 ? -errno : got;
    x->answered = x->sent = 0;
    if (x->counts)
        x->begun = clock_seconds();
    return got >= SIZE + BEHIND_NUMBER && get32(x->room) == got - SIZE ? x->room + SIZE : NULL;
}

/* Where an answer of up to so many bytes may be put, behind the request; NULL where there is no room for it. */
static uint8_t *place(const seg_exchange *x, int64_t most)
{
    return x->room_len - x->received >= most ? x->room + x->received : NULL;
}

static void answer(int sock, seg_exchange *x, uint8_t *out, int64_t len, const uint8_t *number)
{
    memcpy(out + SIZE, number, BEHIND_NUMBER - NUMBER);
    ssize_t sent = send(sock, out, (size_t)len, MSG_DONTWAIT | MSG_NOSIGNAL);
    x->answered = len;
    x->sent = sent < 0 ? 0 : sent; /* who sends the rest meets the error again */
}

static void count(const seg_exchange *x)
{
    if (x->counts && x->sent == x->answered)
        count_request(x->counts, x->received, x->sent, x->begun);
}

/* --- produce ------------------------------------------------------------------ */

static int is_like(const seg_exchange *x, const uint8_t *frame, int64_t len)
{
    return len >= x->asked_len && !memcmp(frame, x->asked, NUMBER) &&
        !memcmp(frame + BEHIND_NUMBER, x->asked + BEHIND_NUMBER, (size_t)(x->asked_len - BEHIND_NUMBER));
}

/* The length of the batch, read at *at, which moves behind it; -1 where there is none. */
static int64_t batch_length(const seg_exchange *x, const uint8_t *frame, int64_t *at, int64_t end)
{
    int64_t length = 0;
    if (!x->compact) {
        *at += 4;
        return *at > end ? -1 : get32(frame + *at - 4);
    }
    for (int n = 0; n < VARINT && *at < end; n++) {
        uint8_t byte = frame[(*at)++];
        length |= (int64_t)(byte & 0x7f) << SHIFT * n;
        if (byte < 0x80)
            return length - 1;
    }
    return -1;
}

/* The one batch of a request, if nothing lies behind it and it has no codec; else NULL. */
static uint8_t *only_batch(const seg_exchange *x, uint8_t *frame, int64_t len, int64_t *size)
{
    int64_t at = x->asked_len, end = len - (x->compact ? TAGS : 0);
    *size = batch_length(x, frame, &at, end);
    if (*size < HEADER || *size != end - at || get16(frame + at + AT_ATTRIBUTES) & CODEC_MASK)
        return NULL;
    for (int64_t i = end; i < len; i++)
        if (frame[i])
            return NULL;
    return frame + at;
}

int64_t seg_exchange_produce(int sock, seg_exchange *x, seg_tail *t, const seg_rules *rules, int64_t now, seg_batch *h)
{
    int64_t size, len;
    uint8_t *frame = receive(sock, x), *out, *batch;
    len = x->received - SIZE;
    if (!frame || !is_like(x, frame, len) || !(batch = only_batch(x, frame, len, &size)) ||
        !(out = place(x, x->answer_len)))
        return SEG_SLOW;
    int64_t first = seg_tail_take(t, batch, size, rules, now, h);
    if (first < 0)
        return first;
    memcpy(out, x->answer, (size_t)x->answer_len);
    put64(out + x->told_at, first);
    put64(out + x->told_at + 8, h->attributes & APPEND_TIME ? h->max_timestamp : -1);
    put64(out + x->told_at + 16, t->start_offset);
    answer(sock, x, out, x->answer_len, frame + NUMBER);
    count(x);
    return first;
}

/* --- fetch ------------------------------------------------------------------ */

static int asks_alike(const seg_exchange *x, const uint8_t *frame, int64_t len)
{
    int64_t behind = x->offset_at + 8;
    return len == x->asked_len && !memcmp(frame, x->asked, NUMBER) &&
        !memcmp(frame + BEHIND_NUMBER, x->asked + BEHIND_NUMBER, (size_t)(x->offset_at - BEHIND_NUMBER)) &&
        !memcmp(frame + behind, x->asked + behind, (size_t)(len - behind));
}

/* Whether these are whole batches of magic 2, and of no transaction where that counts. */
static int are_plain(const seg_exchange *x, const uint8_t *batches, int64_t len)
{
    int64_t at = 0;
    while (len - at >= HEADER) {
        int64_t size = LOG_OVERHEAD + (int64_t)get32(batches + at + AT_LENGTH);
        if (size < HEADER || size > len - at || batches[at + AT_MAGIC] != MAGIC ||
            (x->committed && get16(batches + at + AT_ATTRIBUTES) & TRANSACTIONAL))
            return 0;
        at += size;
    }
    return at == len;
}

static int64_t put_length(const seg_exchange *x, uint8_t *p, int64_t size)
{
    int64_t n = 0;
    if (!x->compact) {
        put32(p, (int32_t)size);
        return 4;
    }
    for (size++; size >= 0x80; size >>= SHIFT)
        p[n++] = (uint8_t)(size & 0x7f) | 0x80;
    p[n++] = (uint8_t)size;
    return n;
}

/* Put an answer with the bytes of a stretch together: its length; 0 where they can't be sent as they are. */
static int64_t put_answer(const seg_exchange *x, int fd, const seg_found *at, const int64_t *ends, uint8_t *out)
{
    int64_t count = at->stop - at->position, len = x->answer_len;
    memcpy(out, x->answer, (size_t)len);
    for (int64_t i = 0; i < x->n_told; i++)
        put64(out + x->told_at + 8 * i, ends[i]);
    len += put_length(x, out + len, count);
    if (seg_pread(fd, out + len, count, at->position) != count || !are_plain(x, out + len, count))
        return 0;
    len += count;
    memcpy(out + len, x->behind, (size_t)x->behind_len);
    len += x->behind_len;
    put32(out, (int32_t)(len - SIZE));
    return len;
}

int64_t seg_exchange_fetch(int sock, seg_exchange *x, int fd, const seg_sendable *s, int64_t start, int64_t stable)
{
    seg_found at;
    int64_t ends[3] = {s->segment.end_offset, stable, start};
    uint8_t *frame = receive(sock, x), *out;
    if (!frame || !asks_alike(x, frame, x->received - SIZE))
        return SEG_SLOW;
    int64_t offset = get64(frame + x->offset_at);
    if (offset < start || offset < s->segment.base_offset || offset >= s->below ||
        !seg_find_stretch(fd, &s->segment, -1, offset, x->most, &at) || at.next_offset > s->below)
        return SEG_SLOW;
    int64_t size = at.stop - at.position;
    if (size <= 0 || size > x->longest || size < x->least ||
        !(out = place(x, x->answer_len + VARINT + size + x->behind_len)))
        return SEG_SLOW;
    int64_t len = put_answer(x, fd, &at, ends, out);
    if (!len)
        return SEG_SLOW;
    answer(sock, x, out, len, frame + NUMBER);
    count(x);
    return size;
}

/* --- a fetch of a session, which waits before it is answered -------------------- */

static int is_same(const seg_exchange *x, const uint8_t *frame, int64_t from, int64_t to)
{
    return !memcmp(frame + from, x->asked + from, (size_t)(to - from));
}

int64_t seg_exchange_next(int sock, seg_exchange *x)
{
    uint8_t *frame = receive(sock, x);
    int64_t behind = x->offset_at + 8;
    if (!frame || x->received - SIZE != x->asked_len || get32(frame + x->epoch_at) != x->epoch ||
        !is_same(x, frame, 0, NUMBER) || !is_same(x, frame, BEHIND_NUMBER, x->epoch_at) ||
        !is_same(x, frame, x->epoch_at + 4, x->offset_at) || !is_same(x, frame, behind, x->asked_len))
        return SEG_SLOW;
    int64_t offset = get64(frame + x->offset_at);
    return offset < 0 ? SEG_SLOW : offset;
}

int64_t seg_exchange_give(int sock, seg_exchange *x, int fd, int64_t position, int64_t stop, const int64_t *ends,
                          const uint8_t *number)
{
    seg_found at = {.position = position, .stop = stop};
    int64_t count = stop - position, len;
    uint8_t *out;
    x->received = x->answered = x->sent = 0;
    if (count <= 0 || count > x->longest || count > x->most ||
        !(out = place(x, x->answer_len + VARINT + count + x->behind_len)) || !(len = put_answer(x, fd, &at, ends, out)))
        return SEG_SLOW;
    answer(sock, x, out, len, number);
    return count;
}
