/* reader.c: a dataset of tokens read, and its order computed, in C99 with nothing but libc.
 *
 *     cc -std=c99 -O2 -o reader examples/reader.c
 *     reader DIR SPLIT SEED EPOCH STEP BATCH SEQ_LEN [BLOCK WINDOW]
 *     reader --vectors data_fixtures/vectors.json
 *
 * The first form checks config.json, the sizes of the files and the content id of the split, and
 * prints one batch of windows of SEQ_LEN tokens: for each row a line of `input_ids` and a line of
 * `labels`. They are those of create_loader(DIR, SPLIT, BATCH, seq_len=SEQ_LEN, seed=SEED,
 * shuffle=True) in that step (from 0) of that epoch; with BLOCK and WINDOW of shuffle="blocks".
 * The second form computes the test vectors. The formats and algorithms are described in
 * docs/format.md and docs/order.md.
 *
 * Any fault is one line on stderr and exit code 1. Sizes are checked before memory is asked for.
 * Out of scope: machines that are big-endian, and 32-bit machines with files of 2 GiB and more.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
typedef uint32_t u32;

#define MAX_JSON ((u64)256 << 20)  /* bytes of a config.json */
#define MAX_DEPTH 64               /* of arrays and objects inside one another */
#define MAX_SAMPLES ((u64)1 << 48)
#define MAX_BATCH ((u64)1 << 28)   /* ids of one batch */
#define MAX_PERIOD ((u64)1 << 22)  /* draws of a schedule */
#define PIECE 65536                /* bytes read at once */

/* ---- Errors and memory: all memory is kept in one list and freed at the end. */

typedef struct Memory { struct Memory *next; } Memory;
static Memory *memory;

static void release(void)
{
    while (memory) {
        Memory *next = memory->next;
        free(memory);
        memory = next;
    }
}

static void fail(const char *format, ...)
{
    char text[512], *at;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (at = text; *at; at++)
        if ((unsigned char)*at < 32) *at = '?'; /* names come from files: one line it is */
    fprintf(stderr, "reader: %s\n", text);
    exit(1);
}

static void *get(u64 count, u64 size)
{
    Memory *found;
    if (count > (SIZE_MAX / 2 - 64) / size) fail("too much memory: %" PRIu64 " x %" PRIu64, count, size);
    found = calloc(1, (size_t)(count * size) + sizeof(Memory) + 8);
    if (!found) fail("no memory for %" PRIu64 " bytes", count * size);
    found->next = memory;
    memory = found;
    return found + 1;
}

/* ---- SHA-256 (FIPS 180-4), SHAKE-256 (FIPS 202), CRC-32 (as in zlib). */

typedef struct { u32 h[8]; unsigned char block[64]; u64 bytes; } Sha256;

static u32 ror32(u32 x, int by) { return x >> by | x << (32 - by); }

/* The first 32 bits of the fractional part of the cube roots of the first 64 primes. */
static const u32 SHA_K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static void sha256_block(Sha256 *s)
{
    u32 w[64], v[8];
    int i;
    for (i = 0; i < 16; i++)
        w[i] = (u32)s->block[4 * i] << 24 | (u32)s->block[4 * i + 1] << 16
             | (u32)s->block[4 * i + 2] << 8 | s->block[4 * i + 3];
    for (; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7]
             + (ror32(w[i - 15], 7) ^ ror32(w[i - 15], 18) ^ w[i - 15] >> 3)
             + (ror32(w[i - 2], 17) ^ ror32(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(v, s->h, sizeof v);
    for (i = 0; i < 64; i++) {
        u32 one = v[7] + (ror32(v[4], 6) ^ ror32(v[4], 11) ^ ror32(v[4], 25))
                + ((v[4] & v[5]) ^ (~v[4] & v[6])) + SHA_K[i] + w[i];
        u32 two = (ror32(v[0], 2) ^ ror32(v[0], 13) ^ ror32(v[0], 22))
                + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (i = 0; i < 8; i++) s->h[i] += v[i];
}

static Sha256 sha256_begin(void)
{
    Sha256 s = {{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}, {0}, 0};
    return s;
}

static void sha256_add(Sha256 *s, const void *data, size_t length)
{
    const unsigned char *bytes = data;
    for (; length; length--) {
        s->block[s->bytes++ % 64] = *bytes++;
        if (s->bytes % 64 == 0) sha256_block(s);
    }
}

static void sha256_hex(Sha256 *s, char hex[65])
{
    u64 bits = 8 * s->bytes;
    int i;
    sha256_add(s, "\x80", 1);
    while (s->bytes % 64 != 56) sha256_add(s, "", 1);
    for (i = 7; i >= 0; i--) {
        unsigned char byte = (unsigned char)(bits >> 8 * i);
        sha256_add(s, &byte, 1);
    }
    for (i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08" PRIx32, s->h[i]);
}

static u64 rol64(u64 x, int by) { return by ? x << by | x >> (64 - by) : x; }

static void keccak(u64 a[25])
{
    unsigned lfsr = 1;
    int round, x, y, t;
    for (round = 0; round < 24; round++) {
        u64 c[5], lane;
        for (x = 0; x < 5; x++) c[x] = a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20];
        for (x = 0; x < 25; x++) a[x] ^= c[(x + 4) % 5] ^ rol64(c[(x + 1) % 5], 1);
        for (lane = a[1], x = 1, y = 0, t = 1; t <= 24; t++) { /* rho and pi in one walk */
            int next = (2 * x + 3 * y) % 5;
            u64 kept;
            x = y;
            y = next;
            kept = a[x + 5 * y];
            a[x + 5 * y] = rol64(lane, t * (t + 1) / 2 % 64);
            lane = kept;
        }
        for (y = 0; y < 25; y += 5) {
            memcpy(c, a + y, sizeof c);
            for (x = 0; x < 5; x++) a[y + x] = c[x] ^ (~c[(x + 1) % 5] & c[(x + 2) % 5]);
        }
        for (t = 0; t < 7; t++) { /* iota: the constants come from a shift register */
            if (lfsr & 1) a[0] ^= (u64)1 << ((1 << t) - 1);
            lfsr = lfsr & 0x80 ? lfsr << 1 ^ 0x171 : lfsr << 1;
        }
    }
}

/* The first `count` 64-bit words, little-endian, of the SHAKE-256 of a text. */
static void shake256(const char *text, size_t length, u64 *out, int count)
{
    u64 a[25] = {0};
    size_t i;
    int at;
    for (i = 0; i < length; i++) {
        a[i % 136 / 8] ^= (u64)(unsigned char)text[i] << 8 * (i % 8);
        if (i % 136 == 135) keccak(a);
    }
    a[i % 136 / 8] ^= (u64)0x1f << 8 * (i % 8);
    a[16] ^= (u64)0x80 << 56;
    for (at = 0; at < count; at++) {
        if (at % 17 == 0) keccak(a);
        out[at] = a[at % 17];
    }
}

/* Goes on from `crc`, which is 0 at first. */
static u32 crc32(u32 crc, const void *data, size_t length)
{
    static u32 table[256];
    const unsigned char *bytes = data;
    if (!table[1]) {
        u32 i, bit;
        for (i = 0; i < 256; i++)
            for (table[i] = i, bit = 0; bit < 8; bit++)
                table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320 : 0);
    }
    for (crc = ~crc; length; length--) crc = table[(crc ^ *bytes++) & 255] ^ crc >> 8;
    return ~crc;
}

/* ---- Files. */

static FILE *open_file(const char *path, u64 *size)
{
    FILE *file = fopen(path, "rb");
    long end;
    if (!file) fail("%s: cannot be opened", path);
    if (fseek(file, 0, SEEK_END) || (end = ftell(file)) < 0 || fseek(file, 0, SEEK_SET))
        fail("%s: has no size", path);
    *size = (u64)end;
    return file;
}

static void read_at(FILE *file, const char *path, u64 offset, void *into, u64 bytes)
{
    if (fseek(file, (long)offset, SEEK_SET) || fread(into, 1, (size_t)bytes, file) != bytes)
        fail("%s: %" PRIu64 " bytes at %" PRIu64 " cannot be read", path, bytes, offset);
}

/* ---- JSON (RFC 8259), as a tree. */

typedef struct Json {
    enum { WORD, NUMBER, STRING, ARRAY, OBJECT } type;
    const char *text;         /* of a word, number or string; a NUL follows it */
    size_t length;
    const struct Json *first; /* element or member */
    const struct Json *next;  /* in the same array or object */
    const char *name;         /* of a member of an object */
} Json;

typedef struct { const char *path; char *start, *at; int depth; } Parser; /* a NUL ends the text */

static void bad_json(const Parser *p) { fail("%s: is not JSON at byte %td", p->path, p->at - p->start); }

static char next(Parser *p)
{
    p->at += strspn(p->at, " \t\r\n");
    return *p->at;
}

/* Decodes a string where it stands, but for \uXXXX, which stays: no name that is looked for has it. */
static const char *parse_string(Parser *p, size_t *length)
{
    char *start, *out;
    if (next(p) != '"') bad_json(p);
    for (start = out = ++p->at; *p->at != '"'; p->at++) {
        const char *found = "\"\"\\\\//b\bf\fn\nr\rt\t";
        if ((unsigned char)*p->at < 32) bad_json(p);
        if (*p->at != '\\') {
            *out++ = *p->at;
        } else if (*++p->at == 'u') {
            if (strspn(p->at + 1, "0123456789abcdefABCDEF") < 4) bad_json(p);
            *out++ = '\\';
            *out++ = 'u';
        } else {
            while (*found && *found != *p->at) found += 2;
            if (!*found) bad_json(p);
            *out++ = found[1];
        }
    }
    p->at++;
    *length = (size_t)(out - start);
    *out = 0; /* at the latest where the closing quote stood */
    return start;
}

static Json *parse_value(Parser *p)
{
    Json *found = get(1, sizeof *found), *inner;
    const Json **end = &found->first;
    char open = next(p), close = open == '{' ? '}' : ']';
    if (open == '"') {
        found->type = STRING;
        found->text = parse_string(p, &found->length);
    } else if (open == '{' || open == '[') {
        found->type = open == '{' ? OBJECT : ARRAY;
        if (++p->depth > MAX_DEPTH) fail("%s: is nested too deep", p->path);
        for (p->at++; next(p) != close || found->first; end = &inner->next) {
            const char *name = NULL;
            size_t length;
            if (open == '{') {
                name = parse_string(p, &length);
                if (next(p) != ':') bad_json(p);
                p->at++;
            }
            *end = inner = parse_value(p);
            inner->name = name;
            if (next(p) == close) break;
            if (*p->at++ != ',') bad_json(p);
        }
        p->at++;
        p->depth--;
    } else {
        char *text = get(32, 1);
        found->text = text;
        found->length = strspn(p->at, "+-.0123456789abcdefghijklmnopqrstuvwxyzE");
        if (!found->length || found->length > 31) bad_json(p);
        memcpy(text, p->at, found->length);
        found->type = strchr("-0123456789", *text) ? NUMBER : WORD;
        if (found->type == WORD && !strstr("true false null", text)) bad_json(p);
        p->at += found->length;
    }
    return found;
}

/* The tree of the file `path`; `text` is its bytes as they are, and a NUL. */
static const Json *read_json(const char *path, char **text, u64 *size)
{
    Parser p = {0};
    const Json *found;
    FILE *file = open_file(path, size);
    if (*size > MAX_JSON) fail("%s: has %" PRIu64 " bytes, which are too many", path, *size);
    *text = get(*size + 1, 1);
    p.start = p.at = get(*size + 1, 1);
    read_at(file, path, 0, *text, *size);
    fclose(file);
    memcpy(p.at, *text, (size_t)*size);
    p.path = path;
    found = parse_value(&p);
    if (next(&p)) bad_json(&p);
    return found;
}

static const Json *member(const Json *object, const char *name)
{
    const Json *found = object->type == OBJECT ? object->first : NULL;
    while (found && strcmp(found->name, name)) found = found->next;
    return found;
}

static const Json *need(const Json *object, const char *name)
{
    const Json *found = member(object, name);
    if (!found) fail("%s is missing", name);
    return found;
}

static const char *string(const Json *value)
{
    if (!value || value->type != STRING || strlen(value->text) != value->length) fail("a text is expected");
    return value->text;
}

/* A whole number, also one that is written as a string of digits. */
static u64 whole(const Json *value)
{
    u64 found = 0;
    const char *at = value && (value->type == NUMBER || value->type == STRING) ? value->text : "";
    if (!*at) fail("a number is expected");
    for (; *at; at++) {
        u64 digit = (u64)(unsigned char)*at - '0';
        if (digit > 9 || found > (UINT64_MAX - digit) / 10) fail("%s: is no number", value->text);
        found = 10 * found + digit;
    }
    return found;
}

#define ANY UINT64_MAX

/* The member `name`, a list of `*count` numbers; of as many as there are where that is ANY. */
static u64 *numbers(const Json *object, const char *name, u64 *count)
{
    const Json *array = need(object, name), *one;
    u64 *found, *at, length = 0;
    if (array->type != ARRAY) fail("%s: a list is expected", name);
    for (one = array->first; one; one = one->next) length++;
    if (*count != ANY && *count != length) fail("%s: a list of other length is expected", name);
    found = at = get(*count = length, sizeof *found);
    for (one = array->first; one; one = one->next) *at++ = whole(one);
    return found;
}

/* ---- The order: docs/order.md, "Keys" and "Permutations". */

typedef struct { u64 multiplier[32], addend[32]; } Key;

static Key make_key(const char *content, u64 seed, u64 epoch, const char *purpose)
{
    char name[512];
    u64 words[64];
    Key key;
    int i, length = snprintf(name, sizeof name, "[\"dataprep order 1\",\"%s\",%" PRIu64 ",%" PRIu64
                             ",\"%s\"]", content, seed, epoch, purpose);
    if (length < 0 || (size_t)length >= sizeof name) fail("the name of an order is too long");
    shake256(name, (size_t)length, words, 64);
    for (i = 0; i < 32; i++) {
        key.multiplier[i] = words[2 * i] | 1;
        key.addend[i] = words[2 * i + 1];
    }
    return key;
}

/* The finaliser of SplitMix64. */
static u64 finalise(u64 word)
{
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
    word = (word ^ word >> 27) * 0x94d049bb133111eb;
    return word ^ word >> 31;
}

#define GOLDEN 0x9e3779b97f4a7c15

/* The number at `position` of the permutation of 0 .. n - 1; `back`: the position of a number. */
static u64 permute(u64 position, u64 n, const Key *key, u64 stream, int back)
{
    int bits = 0, rounds = n <= 8 ? 32 : n <= 64 ? 16 : 8, i;
    u64 size, left, right, shift = finalise(stream * GOLDEN);
    if (n <= 1) return 0;
    while ((n - 1) >> bits) bits++; /* of n - 1 */
    bits = bits < 2 ? 1 : bits / 2;
    size = ((n - 1) >> bits) + 1;
    do {
        left = position >> bits;
        right = position & (((u64)1 << bits) - 1);
        for (i = 0; i < rounds; i++) {
            int round = back ? rounds - 1 - i : i;
            u64 word = (round % 2 ? right : left) + shift;
            word = word * key->multiplier[round] + key->addend[round];
            word = (word ^ word >> 32) * 0xd6e8feb86659fd93;
            if (round % 2) {
                u64 turn = (word >> 32) * size >> 32;
                left = (left + (back ? size - turn : turn)) % size;
            } else {
                right ^= word >> (64 - bits);
            }
        }
        position = left << bits | right;
    } while (position >= n);
    return position;
}

/* Blocks, dealt to windows: docs/order.md, "Blocks". A place is that of a block in the row of all. */
typedef struct {
    u64 n, block, blocks, windows, strata, longer, offset, missing, hole;
    Key block_key, inside_key;
} Blocks;

static u64 first_place(const Blocks *b, u64 window)
{
    return window * (b->strata - 1) + (window < b->longer ? window : b->longer);
}

/* The number in its stratum of the block that a window gets; `back`: the window that gets it. */
static u64 dealt(const Blocks *b, u64 number, u64 stratum, int back)
{
    u64 size = stratum == b->strata - 1 ? b->longer : b->windows;
    return permute(number, size, &b->block_key, stratum + 1, back);
}

static Blocks make_blocks(u64 n, u64 block, u64 window, const char *content, u64 seed, u64 epoch,
                          const char *purpose)
{
    Blocks b;
    char name[256];
    u64 number;
    if (!n || !block || !window) fail("blocks and windows have one sample or more");
    b.n = n;
    b.block = block < n ? block : n;
    b.blocks = (n - 1) / b.block + 1;
    b.windows = (b.blocks - 1) / window + 1;
    b.strata = (b.blocks - 1) / b.windows + 1;
    b.longer = b.blocks - b.windows * (b.strata - 1); /* windows with a block of the last stratum */
    b.missing = b.blocks * b.block - n;
    snprintf(name, sizeof name, "%.200s/blocks", purpose);
    b.block_key = make_key(content, seed, epoch, name);
    snprintf(name, sizeof name, "%.200s/inside blocks", purpose);
    b.inside_key = make_key(content, seed, epoch, name);
    b.offset = permute(0, b.blocks, &b.block_key, 0, 0);
    number = (b.blocks - 1 + b.offset) % b.blocks; /* of the last block, behind which is a hole */
    window = dealt(&b, number % b.windows, number / b.windows, 1);
    b.hole = (first_place(&b, window) + number / b.windows + 1) * b.block - b.missing;
    return b;
}

static u64 block_sample(const Blocks *b, u64 position)
{
    u64 row = position + (position >= b->hole ? b->missing : 0), place = row / b->block;
    u64 far = b->longer * b->strata, w, start, stop, stratum, number;
    w = place < far ? place / b->strata : b->longer + (place - far) / (b->strata - 1);
    start = first_place(b, w) * b->block;
    stop = first_place(b, w + 1) * b->block;
    start -= start > b->hole ? b->missing : 0;
    stop -= stop > b->hole ? b->missing : 0;
    row = start + permute(position - start, stop - start, &b->inside_key, w, 0);
    row += row >= b->hole ? b->missing : 0;
    stratum = row / b->block - first_place(b, w);
    number = stratum * b->windows + dealt(b, w, stratum, 0);
    return (number + b->blocks - b->offset) % b->blocks * b->block + row % b->block;
}

/* The schedule of a mixture: the source of each draw of one period, and its number in its source. */
static void make_schedule(const u64 *weights, u64 sources, u64 period, u64 *source, u64 *number)
{
    u64 *drawn = get(sources, sizeof *drawn), t, i;
    for (t = 0; t < period; t++) {
        u64 best = sources, deadline = 0;
        for (i = 0; i < sources; i++) {
            u64 until = ((drawn[i] + 1) * period + weights[i] - 1) / weights[i];
            int may = drawn[i] < weights[i] && drawn[i] * period / weights[i] <= t;
            if (may && (best == sources || until < deadline)) {
                best = i;
                deadline = until;
            }
        }
        if (best == sources) fail("the weights have no schedule");
        source[t] = best;
        number[t] = drawn[best]++;
    }
}

/* What a sample adds to the digest of its epoch; `seed` is that of the content ids. */
static u64 contribution(u64 sample, u64 position, u64 epoch, u64 seed)
{
    u64 word = finalise(sample * GOLDEN + position * 0x6a09e667f3bcc909);
    return finalise(word + (epoch + 1) * 0xbb67ae8584caa73b + seed);
}

/* A canonical JSON text that grows, for hashes. */
typedef struct { char *text; size_t length, room; } Text;

static void put(Text *t, const char *format, ...)
{
    va_list arguments;
    char piece[512];
    int length;
    va_start(arguments, format);
    length = vsnprintf(piece, sizeof piece, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof piece) fail("a text to hash is too long");
    if (t->length + (size_t)length >= t->room) {
        char *more = get(t->room = 2 * t->room + sizeof piece, 1);
        if (t->length) memcpy(more, t->text, t->length);
        t->text = more;
    }
    memcpy(t->text + t->length, piece, (size_t)length + 1);
    t->length += (size_t)length;
}

static void sha256_of(const char *text, size_t length, char hex[65])
{
    Sha256 sha = sha256_begin();
    sha256_add(&sha, text, length);
    sha256_hex(&sha, hex);
}

/* The first 8 bytes of a digest in hex, as a little-endian number. */
static u64 first_word(const char *hex)
{
    u64 big, found = 0;
    char digits[17] = {0};
    int i;
    memcpy(digits, hex, 16);
    big = strtoull(digits, NULL, 16);
    for (i = 0; i < 8; i++) found = found << 8 | (big >> 8 * i & 255);
    return found;
}

/* The parts of the content id of a split of tokens; a CRC goes on with each piece. */
typedef struct { const char *dtype; u64 tokens, documents; u32 ids, lengths, mask; int masked; } Content;

static void content_id(const Content *c, char hex[65])
{
    Text t = {0};
    put(&t, "[\"dataprep content 1\",\"tokens\",[[\"tokens\",\"%s\",%" PRIu64 ",\"%08" PRIx32 "\"],"
        "[\"lengths\",\"<u8\",%" PRIu64 ",\"%08" PRIx32 "\"]", c->dtype, c->tokens, c->ids,
        c->documents, c->lengths);
    if (c->masked && c->documents) put(&t, ",[\"mask\",\"|u1\",%" PRIu64 ",\"%08" PRIx32 "\"]", c->tokens, c->mask);
    put(&t, "]]");
    sha256_of(t.text, t.length, hex);
}

static u32 crc_of_number(u32 crc, u64 number, int width)
{
    unsigned char bytes[8];
    int i;
    for (i = 0; i < width; i++) bytes[i] = (unsigned char)(number >> 8 * i);
    return crc32(crc, bytes, (size_t)width);
}

/* ---- The dataset: docs/format.md. */

typedef struct {
    const char *folder;
    const Json *config, *split;
    const char *content;
    u64 tokens, width, shards;
    struct Shard { const char *tokens, *docs, *mask; u64 first, length, documents, docs_at, mask_at; } *shard;
} Dataset;

static char *path_of(const char *folder, const char *name)
{
    char *path = get(strlen(folder) + strlen(name) + 2, 1);
    if (!*name || strstr(name, "..") || *name == '/' || strpbrk(name, "\\:")) fail("%s: a bad name", name);
    sprintf(path, "%s/%s", folder, name);
    return path;
}

/* Opens a file of the dataset, whose size must be that in `files`. */
static FILE *open_listed(const Dataset *d, const char *name, u64 *size)
{
    const Json *one = need(d->config, "files")->first;
    FILE *file;
    while (one && strcmp(string(need(one, "name")), name)) one = one->next;
    if (!one) fail("%s: is not listed in config.json", name);
    file = open_file(path_of(d->folder, name), size);
    if (*size != whole(need(one, "bytes"))) fail("%s: has %" PRIu64 " bytes, not those listed", name, *size);
    return file;
}

/* Opens an array of `count` numbers of `width` bytes; its numbers begin at `*begin`. */
static FILE *open_npy(const Dataset *d, const char *name, const char *dtype, u64 count, u64 width,
                      u64 *begin)
{
    unsigned char head[12] = {0};
    char *text;
    u64 size, length;
    FILE *file = open_listed(d, name, &size);
    read_at(file, name, 0, head, size < 10 ? size : 10);
    length = head[8] | (u64)head[9] << 8; /* of the header: a little-endian field */
    if (memcmp(head, "\x93NUMPY\x01", 7) || 10 + length > size) fail("%s: is no .npy file of version 1", name);
    text = get(length + 1, 1);
    read_at(file, name, 10, text, length);
    if (!strstr(text, dtype) || !strstr(text, "False")) fail("%s: is no array of %s", name, dtype);
    *begin = 10 + length;
    if (count > UINT64_MAX / 16 || size - *begin != count * width)
        fail("%s: does not hold %" PRIu64 " numbers", name, count);
    return file;
}

/* config.json is whole: its own digest stands in it, counted as 64 zeros. */
static void check_self(char *text, u64 size)
{
    static const char name[] = "\"self_sha256\": \"";
    char hex[65], *at = text, *found = NULL;
    Sha256 sha = sha256_begin();
    while ((at = strstr(at, name)) != NULL) found = at += sizeof name - 1;
    if (!found || text + size - found < 64) fail("config.json: has no self_sha256");
    sha256_add(&sha, text, (size_t)(found - text));
    for (at = found; at < found + 64; at++) sha256_add(&sha, "0", 1);
    sha256_add(&sha, at, (size_t)(text + size - at));
    sha256_hex(&sha, hex);
    if (memcmp(found, hex, 64)) fail("config.json: is damaged: its SHA-256 is %s", hex);
}

static Dataset open_dataset(const char *folder, const char *split)
{
    Dataset d = {0};
    const Json *one;
    struct Shard *shard;
    const char *dtype;
    char *text;
    u64 size;
    d.folder = folder;
    d.config = read_json(path_of(folder, "config.json"), &text, &size);
    check_self(text, size);
    if (strcmp(string(need(d.config, "format")), "dataprep") || whole(need(d.config, "format_version")) != 1)
        fail("%s: is no dataset of format version 1", folder);
    if (strcmp(string(need(d.config, "kind")), "tokens")) fail("%s: is not of tokens", folder);
    for (one = need(d.config, "required_features")->first; one; one = one->next)
        if (strcmp(string(one), "loss_mask")) fail("%s: needs the feature %s", folder, string(one));
    dtype = string(need(need(d.config, "tokens"), "dtype"));
    d.width = !strcmp(dtype, "<u2") ? 2 : !strcmp(dtype, "<u4") ? 4 : 0;
    if (!d.width) fail("%s: ids are of an unknown dtype %s", folder, dtype);
    d.split = member(need(d.config, "splits"), split);
    if (!d.split) fail("%s: has no split %s", folder, split);
    d.content = string(need(d.split, "content_id"));
    for (one = need(d.split, "shards")->first; one; one = one->next) d.shards++;
    d.shard = shard = get(d.shards, sizeof *shard);
    for (one = need(d.split, "shards")->first; one; one = one->next, shard++) {
        shard->tokens = string(need(one, "tokens"));
        shard->docs = string(need(one, "docs"));
        shard->documents = whole(need(one, "documents"));
        shard->first = d.tokens;
        shard->length = whole(need(one, "length"));
        fclose(open_listed(&d, shard->tokens, &size));
        if (shard->length > UINT64_MAX / 16 || size != shard->length * d.width)
            fail("%s: does not hold %" PRIu64 " ids", shard->tokens, shard->length);
        fclose(open_npy(&d, shard->docs, "'<u8'", shard->documents + 1, 8, &shard->docs_at));
        if (member(one, "mask")) {
            shard->mask = string(need(one, "mask"));
            fclose(open_npy(&d, shard->mask, "'|u1'", shard->length, 1, &shard->mask_at));
        }
        d.tokens += shard->length;
    }
    if (d.tokens != whole(need(d.split, "tokens"))) fail("the shards of %s have other tokens", split);
    return d;
}

/* The ids (or masks) of `count` tokens from `first` on, wherever shards end, into `out`. */
static void read_tokens(const Dataset *d, u64 first, u64 count, int mask, u32 *out)
{
    const struct Shard *s = d->shard;
    while (count) {
        u64 width = mask ? 1 : d->width, at, some, size, i;
        unsigned char *bytes;
        const char *name;
        FILE *file;
        while (first >= s->first + s->length) s++;
        at = first - s->first;
        some = count < s->length - at ? count : s->length - at;
        name = mask ? s->mask : s->tokens;
        if (!name) fail("%s: has no mask", s->tokens);
        file = open_file(path_of(d->folder, name), &size);
        bytes = (unsigned char *)out + some * (4 - width); /* widened from the left in one array */
        read_at(file, name, (mask ? s->mask_at : 0) + at * width, bytes, some * width);
        fclose(file);
        for (i = 0; i < some; i++, bytes += width) {
            u32 id = bytes[0];
            if (width > 1) id |= (u32)bytes[1] << 8;
            if (width > 2) id |= (u32)bytes[2] << 16 | (u32)bytes[3] << 24;
            *out++ = id;
        }
        first += some;
        count -= some;
    }
}

/* The content id from the bytes of all shards. */
static void check_content(const Dataset *d)
{
    Content c = {0};
    const struct Shard *s;
    unsigned char *bytes = get(PIECE, 1);
    char hex[65];
    c.dtype = d->width == 2 ? "<u2" : "<u4";
    c.tokens = d->tokens;
    for (s = d->shard; s < d->shard + d->shards; s++) {
        int which;
        u64 before = 0, i;
        for (which = 0; which < 3; which++) { /* ids, docs, mask */
            const char *name = which == 0 ? s->tokens : which == 1 ? s->docs : s->mask;
            u64 at = which == 0 ? 0 : which == 1 ? s->docs_at : s->mask_at, size;
            FILE *file = name ? open_file(path_of(d->folder, name), &size) : NULL;
            for (; file && at < size; at += PIECE) {
                u64 some = size - at < PIECE ? size - at : PIECE, word, byte;
                read_at(file, name, at, bytes, some);
                if (which == 0) c.ids = crc32(c.ids, bytes, (size_t)some);
                if (which == 2) c.mask = crc32(c.mask, bytes, (size_t)some);
                for (i = 0; which == 1 && i + 8 <= some; i += 8) {
                    for (word = 0, byte = 8; byte--;) word = word << 8 | bytes[i + byte];
                    if (word < before || word > s->length) fail("%s: offsets are wrong", name);
                    if (at + i > s->docs_at) c.lengths = crc_of_number(c.lengths, word - before, 8);
                    before = word;
                }
            }
            if (file) fclose(file);
        }
        if (before != s->length) fail("%s: does not end at the tokens of its shard", s->docs);
        c.documents += s->documents;
        c.masked |= s->mask != NULL;
    }
    content_id(&c, hex);
    if (strcmp(hex, d->content)) fail("content id %s, not %s", hex, d->content);
}

/* ---- A batch. */

static u64 argument(const char *text)
{
    Json value = {0};
    value.type = NUMBER;
    value.text = text;
    return whole(&value);
}

static void print_batch(int count, char **words)
{
    Dataset d = open_dataset(words[0], words[1]);
    u64 seed = argument(words[2]), epoch = argument(words[3]), step = argument(words[4]);
    u64 batch = argument(words[5]), seq_len = argument(words[6]), windows, row, i;
    const char *purpose = "windows";
    Key key;
    Blocks blocks = {0};
    u32 *ids, *mask = NULL;
    check_content(&d);
    if (!batch || !seq_len || batch > MAX_BATCH || seq_len >= MAX_BATCH / batch) fail("a batch is too large");
    windows = d.tokens > seq_len ? (d.tokens - seq_len - 1) / seq_len + 1 : 0;
    if (windows > MAX_SAMPLES || step >= windows / batch) fail("%" PRIu64 " windows have no such step", windows);
    key = make_key(d.content, seed, epoch, purpose);
    if (count == 9)
        blocks = make_blocks(windows, argument(words[7]), argument(words[8]), d.content, seed, epoch, purpose);
    ids = get(seq_len + 1, sizeof *ids);
    if (d.shard[0].mask) mask = get(seq_len + 1, sizeof *mask);
    for (row = step * batch; row < (step + 1) * batch; row++) {
        u64 window = count == 9 ? block_sample(&blocks, row) : permute(row, windows, &key, 0, 0);
        read_tokens(&d, window * seq_len, seq_len + 1, 0, ids);
        if (mask) read_tokens(&d, window * seq_len, seq_len + 1, 1, mask);
        for (i = 0; i < seq_len; i++) printf("%" PRIu32 "%c", ids[i], i + 1 < seq_len ? ' ' : '\n');
        for (i = 1; i <= seq_len; i++) /* label j is the token after input j, or -100 */
            printf("%" PRId64 "%c", mask && !mask[i] ? -100 : (int64_t)ids[i], i < seq_len ? ' ' : '\n');
    }
}

/* ---- Test vectors: each function checks one line of a section of vectors.json. */

static u64 checks;

static void expect(const char *what, u64 got, u64 wanted)
{
    checks++;
    if (got != wanted) fail("vector of %s: %" PRIu64 ", not %" PRIu64, what, got, wanted);
}

static void expect_text(const char *what, const char *got, const char *wanted)
{
    checks++;
    if (strcmp(got, wanted)) fail("vector of %s: %s, not %s", what, got, wanted);
}

/* The key that a list [content id, seed, epoch, purpose] names. */
static Key key_of(const Json *list)
{
    const Json *seed = list->first ? list->first->next : NULL, *epoch = seed ? seed->next : NULL;
    if (!epoch || !epoch->next) fail("a key has four parts");
    return make_key(string(list->first), whole(seed), whole(epoch), string(epoch->next));
}

static void vector_of_keys(const Json *v)
{
    Key key = key_of(need(v, "key"));
    const Json *round = need(v, "rounds")->first;
    int i;
    for (i = 0; i < 32 && round; i++, round = round->next) {
        expect("keys", key.multiplier[i], whole(round->first));
        expect("keys", key.addend[i], whole(round->first->next));
    }
    expect("keys", (u64)i, 32);
}

static void vector_of_permutations(const Json *v)
{
    Key key = key_of(need(v, "key"));
    u64 n = whole(need(v, "n")), count = ANY, i;
    const u64 *positions = numbers(v, "positions", &count), *streams = numbers(v, "streams", &count);
    const u64 *samples = numbers(v, "samples", &count);
    for (i = 0; i < count; i++) {
        expect("permutations", permute(positions[i], n, &key, streams[i], 0), samples[i]);
        expect("permutations", permute(samples[i], n, &key, streams[i], 1), positions[i]);
    }
}

static void vector_of_blocks(const Json *v)
{
    Blocks b = make_blocks(whole(need(v, "n")), whole(need(v, "block")), whole(need(v, "window")),
                           string(need(v, "content_id")), whole(need(v, "seed")),
                           whole(need(v, "epoch")), string(need(v, "purpose")));
    u64 count = ANY, i;
    const u64 *positions = numbers(v, "positions", &count), *samples = numbers(v, "samples", &count);
    for (i = 0; i < count; i++) expect("blocks", block_sample(&b, positions[i]), samples[i]);
}

static void vector_of_skips(const Json *v)
{
    Key key = key_of(need(v, "key"));
    u64 skipped = ANY, served = ANY, i, position, at = 0, n = whole(need(v, "n"));
    const u64 *skip = numbers(v, "skip", &skipped), *samples = numbers(v, "samples", &served);
    for (position = 0; position < n; position++) { /* the order with the skipped ones struck out */
        u64 sample = permute(position, n, &key, 0, 0);
        for (i = 0; i < skipped && skip[i] != sample; i++) {}
        if (i == skipped) expect("skips", sample, at < served ? samples[at++] : n);
    }
    expect("skips", at, served);
}

static void vector_of_digests(const Json *v)
{
    u64 count = ANY, i, epoch = whole(need(v, "epoch")), seed, sum = 0;
    const u64 *samples = numbers(v, "samples", &count), *positions = numbers(v, "positions", &count);
    const u64 *parts = numbers(v, "contributions", &count);
    const Json *one = need(v, "content")->first;
    Text t = {0};
    char hex[65];
    put(&t, "[\"dataprep digest 1\",1,[");
    for (; one; one = one->next) put(&t, "\"%s\"%s", string(one), one->next ? "," : "");
    put(&t, "]]");
    sha256_of(t.text, t.length, hex);
    seed = first_word(hex);
    for (i = 0; i < count; i++) {
        u64 part = contribution(samples[i], positions[i], epoch, seed);
        expect("digests", part, parts[i]);
        sum += part;
    }
    snprintf(hex, sizeof hex, "%016" PRIx64, sum);
    expect_text("digests", hex, string(need(v, "digest")));
}

/* Draws of a schedule: source and number of any draw. */
typedef struct { u64 sources, period, *weights, *source, *number; } Schedule;

static Schedule schedule_of(const Json *v)
{
    Schedule s = {0};
    u64 i;
    s.sources = ANY;
    s.weights = numbers(v, "weights", &s.sources);
    for (i = 0; i < s.sources; i++) {
        if (!s.weights[i] || s.weights[i] > MAX_PERIOD - s.period) fail("weights are too large");
        s.period += s.weights[i];
    }
    s.source = get(s.period, sizeof *s.source);
    s.number = get(s.period, sizeof *s.number);
    make_schedule(s.weights, s.sources, s.period, s.source, s.number);
    return s;
}

static u64 draw(const Schedule *s, u64 at, u64 *source)
{
    *source = s->source[at % s->period];
    return at / s->period * s->weights[*source] + s->number[at % s->period];
}

static void vector_of_schedules(const Json *v)
{
    Schedule s = schedule_of(v);
    u64 count = ANY, i, source;
    const u64 *at = numbers(v, "positions", &count), *sources = numbers(v, "sources", &count);
    const u64 *wanted = numbers(v, "numbers", &count);
    for (i = 0; i < count; i++) {
        expect("schedules", draw(&s, at[i], &source), wanted[i]);
        expect("schedules", source, sources[i]);
    }
}

/* The parts of the ranks in every step of the `n` samples of an epoch; a mixture has a `deal` key. */
static void check_steps(const Json *v, const u64 *samples, u64 n, const Key *deal)
{
    u64 batch = whole(need(v, "batch_size")), ranks = whole(need(v, "dp_size")), begin = 0;
    const Json *step = need(v, "steps")->first, *part, *one;
    int drop = !strcmp(string(need(v, "end")), "drop");
    if (!batch || !ranks || batch > MAX_BATCH || ranks > MAX_BATCH) fail("a vector of steps is wrong");
    for (; begin + (drop ? batch * ranks : 1) <= n; begin += batch * ranks, step = step ? step->next : NULL) {
        u64 rows = n - begin < batch * ranks ? n - begin : batch * ranks, rank = 0, slot;
        if (!step) fail("vector of ranks: a step is missing");
        for (part = step->first; part; part = part->next, rank++) {
            for (slot = rows * rank / ranks, one = part->first; one; one = one->next, slot++) {
                if (slot < rows * (rank + 1) / ranks)
                    expect("ranks", samples[begin + (deal ? permute(slot, rows, deal, begin, 0) : slot)], whole(one));
                else if (one->type != WORD) fail("vector of ranks: a row is not padding");
            }
            if (slot < rows * (rank + 1) / ranks) fail("vector of ranks: a row is missing");
        }
        expect("ranks", rank, ranks);
    }
    if (step) fail("vector of ranks: a step is too many");
}

static void vector_of_ranks(const Json *v)
{
    Key key = key_of(need(v, "key"));
    u64 n = whole(need(v, "n")), i, *samples = get(n, sizeof *samples);
    for (i = 0; i < n; i++) samples[i] = permute(i, n, &key, 0, 0);
    check_steps(v, samples, n, NULL);
}

static void vector_of_mixtures(const Json *v)
{
    Schedule s = schedule_of(v);
    u64 n = 0, i, j, count = ANY, seed = whole(need(v, "seed")), epoch = whole(need(v, "epoch"));
    const u64 *sizes = numbers(v, "samples_of", &s.sources), *wanted = numbers(v, "samples", &count);
    u64 *samples = get(count, sizeof *samples);
    const Json *one = need(v, "content")->first;
    const char **content = get(s.sources, sizeof *content);
    char hex[65], purpose[32];
    Text t = {0};
    Key deal;
    for (i = 0; i < s.sources; i++, one = one->next) {
        content[i] = string(one);
        put(&t, "%s\"%s\"", i ? "," : "[", content[i]);
        if (!sizes[i]) fail("a source has no samples");
        n += sizes[i];
    }
    if (n != count) fail("a vector of mixtures is wrong");
    put(&t, "]");
    sha256_of(t.text, t.length, hex);
    deal = make_key(hex, seed, epoch, "mixture/deal");
    for (i = 0; i < n; i++) {
        u64 source, number = draw(&s, epoch * n + i, &source), base = 0, equal = 0;
        Key key;
        for (j = 0; j < source; j++) {
            base += sizes[j];
            equal += !strcmp(content[j], content[source]);
        }
        snprintf(purpose, sizeof purpose, "mixture/%" PRIu64, equal);
        key = make_key(content[source], seed, number / sizes[source], purpose);
        samples[i] = base + permute(number % sizes[source], sizes[source], &key, 0, 0);
        expect("mixtures", samples[i], wanted[i]);
    }
    check_steps(v, samples, n, &deal);
}

/* First-fit or best-fit decreasing: the row of each piece, rows in the order they are opened. */
static void vector_of_packing(const Json *v)
{
    u64 count = ANY, pieces = 0, i, j, tokens = 0, rows = 0, size = whole(need(v, "seq_len"));
    const u64 *lengths = numbers(v, "lengths", &count), *wanted[4];
    const char *names[] = {"document", "start", "length", "more"}, *overlong = string(need(v, "overlong"));
    int best = !strcmp(string(need(v, "algorithm")), "best-fit");
    const Json *row_pieces = need(v, "pieces")->first;
    struct Piece { u64 field[4], row; } *piece;
    u64 *room, *taken, at = 0;
    for (i = 0; i < count; i++) pieces += size ? lengths[i] / size + 1 : 0;
    piece = get(pieces, sizeof *piece);
    room = get(pieces, sizeof *room);
    taken = get(pieces, sizeof *taken);
    for (pieces = 0, i = 0; i < count; tokens += lengths[i++]) {
        u64 left = lengths[i], start = tokens;
        if (left > size && !strcmp(overlong, "drop")) continue;
        if (left > size && !strcmp(overlong, "truncate")) left = size;
        for (; left; pieces++) {
            u64 some = left < size ? left : size, fields[4];
            fields[0] = i, fields[1] = start, fields[2] = some, fields[3] = left > some;
            memcpy(piece[pieces].field, fields, sizeof fields);
            piece[pieces].row = UINT64_MAX;
            start += some;
            left -= some;
        }
    }
    for (i = 0; i < pieces; i++) { /* the longest that waits, of equal ones the first */
        struct Piece *next_one = NULL;
        u64 chosen = rows;
        for (j = 0; j < pieces; j++)
            if (piece[j].row == UINT64_MAX && (!next_one || piece[j].field[2] > next_one->field[2]))
                next_one = piece + j;
        for (j = 0; j < rows; j++)
            if (room[j] >= next_one->field[2] && (chosen == rows || (best && room[j] < room[chosen])))
                chosen = j;
        if (chosen == rows) room[rows++] = size;
        room[chosen] -= next_one->field[2];
        next_one->row = chosen;
    }
    for (count = ANY, i = 0; i < 4; i++) wanted[i] = numbers(v, names[i], &count);
    for (i = 0; i < pieces; i++) { /* rows in the order of their first pieces */
        u64 here = 0;
        if (taken[piece[i].row]++) continue;
        for (j = i; j < pieces; j++) {
            int field;
            if (piece[j].row != piece[i].row) continue;
            if (at == count) fail("vector of packing: a piece is missing");
            for (field = 0; field < 4; field++) expect("packing", piece[j].field[field], wanted[field][at]);
            at++;
            here++;
        }
        if (!row_pieces) fail("vector of packing: too few rows");
        expect("packing", here, whole(row_pieces));
        row_pieces = row_pieces->next;
    }
    expect("packing", at, count);
}

/* A bound in 0 .. 2**64 of 64-bit numbers: whether `hash` is below it. */
static int below(u64 hash, const Json *bound)
{
    return (bound->type == STRING && !strcmp(bound->text, "18446744073709551616")) || hash < whole(bound);
}

static void vector_of_splits(const Json *v)
{
    u64 count = ANY, i, part;
    const u64 *hashes = numbers(v, "hashes", &count), *parts = numbers(v, "parts", &count);
    const Json *bound, *bounds = need(v, member(v, "ends") ? "ends" : "cuts")->first;
    for (i = 0; i < count; i++) {
        for (part = 0, bound = bounds; bound; bound = bound->next, part++) {
            const Json *hash = bound->type == ARRAY ? bound->first : bound; /* or [hash, record] */
            if (hash && below(hashes[i], hash)) break;
            if (hash != bound && hashes[i] == whole(hash) && i < whole(hash->next)) break;
        }
        expect("splits", part, parts[i]);
    }
}

static void vector_of_steering(const Json *v)
{
    u64 count = ANY, i, key, limits = ANY, limit, variant;
    const u64 *pairs = numbers(v, "pairs", &count), *variants = numbers(v, "variants", &count);
    const u64 *thresholds = numbers(v, "thresholds", &limits);
    Text t = {0};
    char hex[65];
    put(&t, "[\"dataprep steering 1\",\"%s\",%s,%s]", string(need(v, "content_id")),
        need(v, "seed")->text, need(v, "epoch")->text);
    sha256_of(t.text, t.length, hex);
    key = first_word(hex);
    for (i = 0; i < count; i++) {
        u64 hash = finalise(pairs[i] * GOLDEN + key) >> 2;
        for (variant = limit = 0; limit < limits; limit++) variant += thresholds[limit] <= hash;
        expect("steering", variant, variants[i]);
    }
}

static void vector_of_content_ids(const Json *v)
{
    Content c = {0};
    char hex[65];
    const Json *document = need(v, "documents")->first, *id;
    c.dtype = string(need(v, "dtype"));
    for (; document; document = document->next, c.documents++) {
        u64 length = 0;
        for (id = document->first; id; id = id->next, length++)
            c.ids = crc_of_number(c.ids, whole(id), c.dtype[2] == '2' ? 2 : 4);
        c.lengths = crc_of_number(c.lengths, length, 8);
        c.tokens += length;
    }
    for (id = need(v, "mask")->first; id; id = id->next) {
        c.mask = crc_of_number(c.mask, whole(id), 1);
        c.masked = 1;
    }
    content_id(&c, hex);
    expect_text("content_ids", hex, string(need(v, "content_id")));
}

static void vector_of_canonical(const Json *v)
{
    char hex[65];
    sha256_of(need(v, "json")->text, need(v, "json")->length, hex);
    expect_text("canonical", hex, string(need(v, "sha256")));
}

/* Byte number i of the file is i * i mod 251. */
static void vector_of_crc_tables(const Json *v)
{
    u64 size = whole(need(v, "bytes")), block, i, blocks = ANY;
    const u64 *table = numbers(v, "crc32", &blocks);
    unsigned char byte;
    Sha256 sha = sha256_begin();
    char hex[65];
    for (block = 0; block << 20 < size; block++) {
        u32 crc = 0;
        for (i = block << 20; i < size && i < (block + 1) << 20; i++) {
            byte = (unsigned char)(i * i % 251);
            crc = crc32(crc, &byte, 1);
            sha256_add(&sha, &byte, 1);
        }
        expect("crc_tables", crc, block < blocks ? table[block] : (u64)-1);
    }
    expect("crc_tables", block, blocks);
    sha256_hex(&sha, hex);
    expect_text("crc_tables", hex, string(need(v, "sha256")));
}

static void check_vectors(const char *path)
{
    static const struct { const char *name; void (*check)(const Json *); } known[] = {
        {"keys", vector_of_keys}, {"permutations", vector_of_permutations},
        {"blocks", vector_of_blocks}, {"skips", vector_of_skips}, {"digests", vector_of_digests},
        {"schedules", vector_of_schedules}, {"mixtures", vector_of_mixtures},
        {"ranks", vector_of_ranks}, {"packing", vector_of_packing}, {"splits", vector_of_splits},
        {"steering", vector_of_steering}, {"content_ids", vector_of_content_ids},
        {"canonical", vector_of_canonical}, {"crc_tables", vector_of_crc_tables}};
    char *text;
    u64 size;
    const Json *all = read_json(path, &text, &size), *section, *one;
    if (strcmp(string(need(all, "format")), "dataprep vectors 1")) fail("%s: is no file of vectors", path);
    for (section = all->first; section; section = section->next) {
        size_t i;
        if (section->type != ARRAY) continue;
        for (i = 0; i < sizeof known / sizeof *known && strcmp(known[i].name, section->name); i++) {}
        checks = 0;
        for (one = section->first; one && i < sizeof known / sizeof *known; one = one->next)
            known[i].check(one);
        if (checks) printf("%s: %" PRIu64 " values agree\n", section->name, checks);
        else printf("%s: not computed here\n", section->name);
    }
}

int main(int count, char **words)
{
    const u32 one = 1;
    atexit(release);
    if (!*(const unsigned char *)&one) fail("this machine is big-endian");
    if (count == 3 && !strcmp(words[1], "--vectors")) check_vectors(words[2]);
    else if (count == 8 || count == 10) print_batch(count - 1, words + 1);
    else fail("usage: reader DIR SPLIT SEED EPOCH STEP BATCH SEQ_LEN [BLOCK WINDOW] | --vectors FILE");
    if (fflush(stdout) || ferror(stdout)) fail("the output cannot be written");
    return 0;
}
