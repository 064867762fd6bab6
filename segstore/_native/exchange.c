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
    NUMBER = 4,             /* of requests the place of the correlation id, with which answers begin */
    HEAD = 8,               /* the least bytes of a request */
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
    return got >= SIZE + HEAD && get32(x->room) == got - SIZE ? x->room + SIZE : NULL;
}

/* Where an answer of up to so many bytes may be put, behind the request; NULL where there is no room for it. */
static uint8_t *place(const seg_exchange *x, int64_t most)
{
    return x->room_len - x->received >= most ? x->room + x->received : NULL;
}

static void answer(int sock, seg_exchange *x, uint8_t *out, int64_t len)
{
    put32(out, (int32_t)(len - SIZE));
    ssize_t sent = send(sock, out, (size_t)len, MSG_DONTWAIT | MSG_NOSIGNAL);
    x->answered = len;
    x->sent = sent < 0 ? 0 : sent; /* who sends the rest meets the error again */
}

static void count(const seg_exchange *x)
{
    if (x->counts && x->sent == x->answered)
        count_request(x->counts, x->received, x->sent, x->begun);
}

/* Whether a message begins as the template does, but for the holes. */
static int matches(const seg_message *t, const uint8_t *message, int64_t len)
{
    int64_t from = 0;
    if (len < t->front_len)
        return 0;
    for (int i = 0; i <= t->n_holes; i++) {
        int64_t to = i < t->n_holes ? t->holes[i].at : t->front_len;
        if (memcmp(message + from, t->front + from, (size_t)(to - from)))
            return 0;
        from = i < t->n_holes ? to + t->holes[i].width : to;
    }
    return 1;
}

/* Begin an answer after its size: the front of the template with these numbers. Its length with the size. */
static int64_t put_front(const seg_message *t, uint8_t *out, int32_t number, const int64_t *numbers)
{
    memcpy(out + SIZE, t->front, (size_t)t->front_len);
    put32(out + SIZE, number);
    for (int i = 1; i < t->n_holes; i++)
        put64(out + SIZE + t->holes[i].at, numbers[i - 1]);
    return SIZE + t->front_len;
}

/* --- produce ------------------------------------------------------------------ */

/* The length of the batch, read at *at, which moves behind it; -1 where there is none. */
static int64_t batch_length(const seg_message *t, const uint8_t *frame, int64_t *at, int64_t end)
{
    int64_t length = 0;
    if (!t->compact) {
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

/* The one batch of a request, if it has no codec, and what comes after it is known; else NULL. */
static uint8_t *only_batch(const seg_message *t, uint8_t *frame, int64_t len, int64_t *size)
{
    int64_t at = t->front_len, end = len - t->end_len;
    *size = batch_length(t, frame, &at, end);
    if (*size < HEADER || *size != end - at || get16(frame + at + AT_ATTRIBUTES) & CODEC_MASK ||
        memcmp(frame + end, t->end, (size_t)t->end_len))
        return NULL;
    return frame + at;
}

int64_t seg_exchange_produce(int sock, seg_exchange *x, seg_tail *t, const seg_rules *rules, int64_t now, seg_batch *h)
{
    int64_t size, len;
    uint8_t *frame = receive(sock, x), *out, *batch;
    len = x->received - SIZE;
    if (!frame || !matches(&x->asked, frame, len) || !(batch = only_batch(&x->asked, frame, len, &size)) ||
        !(out = place(x, SIZE + x->answer.front_len)))
        return SEG_SLOW;
    int64_t first = seg_tail_take(t, batch, size, rules, now, h);
    if (first < 0)
        return first;
    int64_t told[3] = {first, h->attributes & APPEND_TIME ? h->max_timestamp : -1, t->start_offset};
    answer(sock, x, out, put_front(&x->answer, out, get32(frame + NUMBER), told));
    count(x);
    return first;
}

/* --- fetch ------------------------------------------------------------------ */

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

static int64_t put_length(const seg_message *t, uint8_t *p, int64_t size)
{
    int64_t n = 0;
    if (!t->compact) {
        put32(p, (int32_t)size);
        return 4;
    }
    for (size++; size >= 0x80; size >>= SHIFT)
        p[n++] = (uint8_t)(size & 0x7f) | 0x80;
    p[n++] = (uint8_t)size;
    return n;
}

/* The most bytes of an answer with so many bytes of records. */
static int64_t most_of(const seg_message *t, int64_t count)
{
    return SIZE + t->front_len + VARINT + count + t->end_len;
}

/* Put an answer with the bytes of a stretch together: its length; 0 where they can't be sent as they are. */
static int64_t put_answer(const seg_exchange *x, int fd, const seg_found *at, int32_t number, const int64_t *ends,
                          uint8_t *out)
{
    const seg_message *t = &x->answer;
    int64_t count = at->stop - at->position, len = put_front(t, out, number, ends);
    len += put_length(t, out + len, count);
    if (seg_pread(fd, out + len, count, at->position) != count || !are_plain(x, out + len, count))
        return 0;
    len += count;
    memcpy(out + len, t->end, (size_t)t->end_len);
    return len + t->end_len;
}

/* The offset that a fetch asks for; -1 if it is another request. */
static int64_t asked_offset(const seg_exchange *x, const uint8_t *frame)
{
    const seg_message *t = &x->asked;
    if (x->received - SIZE != t->front_len || !matches(t, frame, t->front_len))
        return -1;
    return get64(frame + t->holes[t->n_holes - 1].at);
}

int64_t seg_exchange_fetch(int sock, seg_exchange *x, int fd, const seg_sendable *s, int64_t start, int64_t stable)
{
    seg_found at;
    int64_t ends[3] = {s->segment.end_offset, stable, start};
    uint8_t *frame = receive(sock, x), *out;
    int64_t offset = frame ? asked_offset(x, frame) : -1;
    if (offset < start || offset < s->segment.base_offset || offset >= s->below ||
        !seg_find_stretch(fd, &s->segment, -1, offset, x->most, &at) || at.next_offset > s->below)
        return SEG_SLOW;
    int64_t size = at.stop - at.position;
    if (size <= 0 || size > x->longest || size < x->least ||
        !(out = place(x, most_of(&x->answer, size))))
        return SEG_SLOW;
    int64_t len = put_answer(x, fd, &at, get32(frame + NUMBER), ends, out);
    if (!len)
        return SEG_SLOW;
    answer(sock, x, out, len);
    count(x);
    return size;
}

/* --- a fetch of a session, which waits before it is answered -------------------- */

int64_t seg_exchange_next(int sock, seg_exchange *x)
{
    uint8_t *frame = receive(sock, x);
    int64_t offset = frame ? asked_offset(x, frame) : -1;
    return offset < 0 || get32(frame + x->asked.holes[1].at) != x->epoch ? SEG_SLOW : offset;
}

int64_t seg_exchange_give(int sock, seg_exchange *x, int fd, int64_t position, int64_t stop, const int64_t *ends,
                          int32_t number)
{
    seg_found at = {.position = position, .stop = stop};
    int64_t count = stop - position, len;
    uint8_t *out;
    x->received = x->answered = x->sent = 0;
    if (count <= 0 || count > x->longest || count > x->most ||
        !(out = place(x, most_of(&x->answer, count))) || !(len = put_answer(x, fd, &at, number, ends, out)))
        return SEG_SLOW;
    answer(sock, x, out, len);
    return count;
}
