// Command origin is a net/http origin for tests and benchmarks. It uses only the standard library.
//
//	go run . -listen 127.0.0.1:9393
//
//	/            a line of text
//	/bytes?n=    n bytes, always the same
//	/delay?ms=   responds after ms milliseconds
//	/upload      the SHA-256 of the request body, in hex
//	/echo        the request's head, one line per field
//	/stream?n=   n lines, each flushed
//	/gated?id=   a line, flushed; the last line follows after a request for /release?id=
//	/release?id= lets /gated continue
//	/ws          a WebSocket echo
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sort"
	"strconv"
	"sync"
	"time"
)

const (
	bytesMax  = 1 << 34
	linesMax  = 1 << 20
	delayMax  = 60_000
	gateWait  = 30 * time.Second
	blockSize = 1 << 16
)

func main() {
	listen := flag.String("listen", "127.0.0.1:9393", "address to listen on")
	flag.Parse()
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", hello)
	mux.HandleFunc("/bytes", bytes)
	mux.HandleFunc("/delay", delay)
	mux.HandleFunc("/upload", upload)
	mux.HandleFunc("/echo", echo)
	mux.HandleFunc("/stream", stream)
	mux.HandleFunc("/gated", gated)
	mux.HandleFunc("/release", release)
	mux.HandleFunc("/ws", websocket)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	log.Fatal(server.Serve(listener))
}

func hello(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/", "/up", "/health", "/healthz":
		text(w, "hello from go\n")
	default:
		http.NotFound(w, r)
	}
}

func text(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	io.WriteString(w, body)
}

// number is a query parameter, 0 if it is missing or malformed.
func number(r *http.Request, name string, max int64) int64 {
	n, err := strconv.ParseInt(r.URL.Query().Get(name), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	if n > max {
		return max
	}
	return n
}

// bytes sends a pattern whose period is not a power of two, so that a lost or repeated block shows.
func bytes(w http.ResponseWriter, r *http.Request) {
	const period = 65521
	pattern := make([]byte, period+blockSize)
	for i := range pattern {
		n := uint32(i % period)
		pattern[i] = byte(n*2654435761>>16) ^ byte(n)
	}
	left := number(r, "n", bytesMax)
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(left, 10))
	for at := int64(0); left > 0; {
		size := int64(blockSize)
		if left < size {
			size = left
		}
		from := at % period
		n, err := w.Write(pattern[from : from+size])
		if err != nil {
			return
		}
		at += int64(n)
		left -= int64(n)
	}
}

func delay(w http.ResponseWriter, r *http.Request) {
	select {
	case <-time.After(time.Duration(number(r, "ms", delayMax)) * time.Millisecond):
		text(w, "waited\n")
	case <-r.Context().Done():
	}
}

func upload(w http.ResponseWriter, r *http.Request) {
	hash := sha256.New()
	if _, err := io.Copy(hash, r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	text(w, hex.EncodeToString(hash.Sum(nil))+"\n")
}

func echo(w http.ResponseWriter, r *http.Request) {
	body := fmt.Sprintf("%s %s %s\nHost: %s\n", r.Method, r.RequestURI, r.Proto, r.Host)
	names := make([]string, 0, len(r.Header))
	for name := range r.Header {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		for _, value := range r.Header[name] {
			body += name + ": " + value + "\n"
		}
	}
	text(w, body)
}

func stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain")
	flusher := w.(http.Flusher)
	for i := int64(0); i < number(r, "n", linesMax); i++ {
		if _, err := fmt.Fprintf(w, "line %d\n", i); err != nil {
			return
		}
		flusher.Flush()
	}
}

var (
	gatesLock sync.Mutex
	gates     = map[string]chan struct{}{}
)

// gated sends its last line only after release, so a client that gets the first line earlier proves that no proxy
// buffered it.
func gated(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("id")
	gate := make(chan struct{})
	gatesLock.Lock()
	gates[id] = gate
	gatesLock.Unlock()
	defer func() {
		gatesLock.Lock()
		if gates[id] == gate {
			delete(gates, id)
		}
		gatesLock.Unlock()
	}()
	io.WriteString(w, "first\n")
	w.(http.Flusher).Flush()
	select {
	case <-gate:
		io.WriteString(w, "last\n")
	case <-r.Context().Done():
	case <-time.After(gateWait):
	}
}

func release(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("id")
	gatesLock.Lock()
	gate, found := gates[id]
	delete(gates, id)
	gatesLock.Unlock()
	if !found {
		http.NotFound(w, r)
		return
	}
	close(gate)
	text(w, "released\n")
}
