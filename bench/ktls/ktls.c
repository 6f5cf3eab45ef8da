// Instructions per KiB of sending with TLS 1.3 (AES-256-GCM) on a connection of loopback: encrypted by the program with
// OpenSSL, or by the kernel. For a guest whose clock counts its instructions, one per nanosecond (see ../ktls.sh).
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define TOTAL (32 << 20)
#define PIECE 65536
#define RECORD 16384
// Header, content type and tag of a record.
#define OVERHEAD 22

enum tls { PLAIN, USER, KERNEL };
enum source { MEMORY, FILE_OF_TMPFS, CONNECTION };

static unsigned char plain[PIECE], sealed[PIECE + PIECE / RECORD * OVERHEAD], key[32], nonce[12];
static EVP_CIPHER_CTX *cipher;

static void must(int is_good, const char *what) {
    if (!is_good) {
        perror(what);
        exit(1);
    }
}

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void print(const char *name, long begun, int kib) {
    printf("RESULT | %s | %ld |\n", name, (now() - begun) / kib);
    fflush(stdout);
}

static void connect_pair(int ends[2]) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    must(!bind(listener, (void *)&address, size) && !listen(listener, 1), "listen");
    must(!getsockname(listener, (void *)&address, &size), "getsockname");
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    must(!connect(ends[0], (void *)&address, size), "connect");
    ends[1] = accept(listener, NULL, NULL);
    must(!setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "TCP_NODELAY");
    close(listener);
}

static void send_all(int socket, const unsigned char *bytes, size_t count) {
    while (count > 0) {
        ssize_t sent = send(socket, bytes, count, 0);
        must(sent > 0, "send");
        bytes += sent;
        count -= sent;
    }
}

// The client: it discards what arrives without a copy.
static void *discard(void *socket) {
    static char nothing[1 << 20];
    while (recv(*(int *)socket, nothing, sizeof nothing, MSG_TRUNC) > 0) {
    }
    return NULL;
}

// The origin.
static void *respond(void *socket) {
    static unsigned char bytes[PIECE];
    for (size_t sent = 0; sent < TOTAL; sent += PIECE) {
        send_all(*(int *)socket, bytes, PIECE);
    }
    return NULL;
}

// Seals some bytes as records of TLS 1.3; returns their size.
static size_t seal(size_t count) {
    unsigned char *out = sealed, type = 23;
    for (unsigned char *in = plain; in < plain + count; in += RECORD) {
        int size = plain + count - in < RECORD ? plain + count - in : RECORD, written;
        unsigned char header[5] = {23, 3, 3, (size + 17) >> 8, size + 17};
        memcpy(out, header, sizeof header);
        nonce[11]++;
        EVP_EncryptInit_ex(cipher, NULL, NULL, NULL, nonce);
        EVP_EncryptUpdate(cipher, NULL, &written, header, sizeof header);
        EVP_EncryptUpdate(cipher, out + 5, &written, in, size);
        EVP_EncryptUpdate(cipher, out + 5 + size, &written, &type, 1);
        EVP_EncryptFinal_ex(cipher, out + 6 + size, &written);
        EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_GCM_GET_TAG, 16, out + 6 + size);
        out += size + OVERHEAD;
    }
    return out - sealed;
}

static void offload(int socket) {
    struct tls12_crypto_info_aes_gcm_256 keys = {.info = {TLS_1_3_VERSION, TLS_CIPHER_AES_GCM_256}};
    memcpy(keys.key, key, sizeof key);
    must(!setsockopt(socket, SOL_TCP, TCP_ULP, "tls", 4), "TCP_ULP");
    must(!setsockopt(socket, SOL_TLS, TLS_TX, &keys, sizeof keys), "TLS_TX");
}

static int file_of_tmpfs(void) {
    int file = open("/tmp/file", O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (size_t written = 0; written < TOTAL; written += PIECE) {
        must(write(file, plain, PIECE) == PIECE, "write");
    }
    lseek(file, 0, SEEK_SET);
    return file;
}

static void measure(const char *name, enum source source, enum tls tls) {
    int client[2], origin[2], file = -1;
    pthread_t discarding, responding;
    connect_pair(client);
    pthread_create(&discarding, NULL, discard, &client[1]);
    if (tls == KERNEL) {
        offload(client[0]);
    }
    if (source == FILE_OF_TMPFS) {
        file = file_of_tmpfs();
    }
    long begun = now();
    if (source == CONNECTION) {
        connect_pair(origin);
        pthread_create(&responding, NULL, respond, &origin[0]);
    }
    for (size_t done = 0; done < TOTAL;) {
        ssize_t count = PIECE;
        if (source == FILE_OF_TMPFS && tls != USER) {
            count = sendfile(client[0], file, NULL, PIECE);
            must(count > 0, "sendfile");
            done += count;
            continue;
        }
        if (source == FILE_OF_TMPFS) {
            count = read(file, plain, PIECE);
        } else if (source == CONNECTION) {
            count = recv(origin[1], plain, PIECE, 0);
        }
        must(count > 0, "read");
        if (tls == USER) {
            send_all(client[0], sealed, seal(count));
        } else {
            send_all(client[0], plain, count);
        }
        done += count;
    }
    close(client[0]);
    pthread_join(discarding, NULL);
    print(name, begun, TOTAL >> 10);
    close(client[1]);
    if (source == CONNECTION) {
        pthread_join(responding, NULL);
        close(origin[0]);
        close(origin[1]);
    }
    if (file >= 0) {
        close(file);
    }
}

int main(void) {
    cipher = EVP_CIPHER_CTX_new();
    EVP_EncryptInit_ex(cipher, EVP_aes_256_gcm(), NULL, key, nonce);
    // The first passes meet cold pages and code that the emulator has not translated yet.
    for (int pass = 0; pass < 2; pass++) {
        printf("RESULT pass %d\n", pass + 1);
        long begun = now();
        for (int i = 0; i < 64; i++) {
            seal(PIECE);
        }
        print("encryption by OpenSSL alone", begun, 64 * PIECE >> 10);
        begun = now();
        for (int i = 0; i < 64; i++) {
            memcpy(sealed, plain, PIECE);
            __asm__ volatile("" ::"r"(sealed) : "memory");
        }
        print("a copy alone", begun, 64 * PIECE >> 10);
        measure("from memory, no TLS", MEMORY, PLAIN);
        measure("from memory, the program encrypts", MEMORY, USER);
        measure("from memory, the kernel encrypts", MEMORY, KERNEL);
        measure("from a file, no TLS (sendfile)", FILE_OF_TMPFS, PLAIN);
        measure("from a file, the program encrypts", FILE_OF_TMPFS, USER);
        measure("from a file, the kernel encrypts (sendfile)", FILE_OF_TMPFS, KERNEL);
        measure("from another connection, no TLS", CONNECTION, PLAIN);
        measure("from another connection, the program encrypts", CONNECTION, USER);
        measure("from another connection, the kernel encrypts", CONNECTION, KERNEL);
    }
    return 0;
}
