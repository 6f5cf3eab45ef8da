// Command differential records every request it receives: client, added field, method, target and body, each in hex.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
)

func main() {
	listen := flag.String("listen", "", "address to listen on")
	flag.Parse()
	log.Fatal(http.ListenAndServe(*listen, http.HandlerFunc(take)))
}

func take(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		// The rest of it never came.
		return
	}
	client := strings.Join(r.Header["X-Forwarded-For"], ", ")
	field := strings.Join(r.Header["X-Differential"], ", ")
	fmt.Printf("request=%x %x %x %x %x=\n", client, field, r.Method, r.RequestURI, body)
	io.WriteString(w, "taken\n")
}
