// Command pages is a net/http origin whose pages are created at start, so that a response costs only what net/http
// costs. It uses only the standard library.
//
//	go run . -listen 127.0.0.1:9393
//
//	/10kb, /100kb   a page of 10 or 100 KiB, with a Content-Length
//	/up             for health checks
package main

import (
	"bytes"
	"flag"
	"log"
	"net"
	"net/http"
	"strconv"
	"time"
)

// The length is not a power of two, so that a lost or repeated block shows.
const line = "<p>A line of a page, as an application would have put it together from its data.</p>\n"

func main() {
	listen := flag.String("listen", "127.0.0.1:9393", "address to listen on")
	flag.Parse()
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/10kb", page(10<<10))
	mux.HandleFunc("/100kb", page(100<<10))
	mux.HandleFunc("/up", page(len(line)))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	log.Fatal(server.Serve(listener))
}

func page(size int) http.HandlerFunc {
	body := bytes.Repeat([]byte(line), size/len(line)+1)[:size]
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.Write(body)
	}
}
