// What quic-go, another implementation of QUIC and HTTP/3, sees of a sluice in front of its demo origin.
//
//	quicgo PORT MEGABYTES
//
// It prints one line for each step, and ends with an error at the first that fails.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"hash"
	"io"
	"log"
	"math/rand"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

var address, base string

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func check(holds bool, what ...any) {
	if !holds {
		log.Fatal(what...)
	}
}

// A body of random bytes, and its digest once it was read.
type body struct {
	random *rand.Rand
	left   int64
	digest hash.Hash
}

func (b *body) Read(into []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	count := int64(min(int64(len(into)), b.left))
	b.random.Read(into[:count])
	b.digest.Write(into[:count])
	b.left -= count
	return int(count), nil
}

func echo(client *http.Client, bytes int64) {
	sent := &body{rand.New(rand.NewSource(bytes)), bytes, sha256.New()}
	request := must(http.NewRequest("POST", base+"/echo", sent))
	response := must(client.Do(request))
	got := sha256.New()
	count := must(io.Copy(got, response.Body))
	check(count == bytes && string(got.Sum(nil)) == string(sent.digest.Sum(nil)), "the echo differs", count)
}

func get(client *http.Client, path string) *http.Response {
	response := must(client.Get(base + path))
	content := must(io.ReadAll(response.Body))
	response.Header.Set("Length", strconv.Itoa(len(content)))
	return response
}

// A WebSocket (RFC 9220) on a connection of its own: a message, and what comes back.
func socket(trip *http3.Transport, transport *quic.Transport, udp net.Addr) {
	settings := trip.TLSClientConfig.Clone()
	settings.NextProtos, settings.ServerName = []string{http3.NextProtoH3}, "localhost"
	conn := must(transport.Dial(context.Background(), udp, settings, trip.QUICConfig))
	client := trip.NewClientConn(conn)
	<-client.ReceivedSettings()
	check(client.Settings().EnableExtendedConnect, "no extended CONNECT")
	stream := must(client.OpenRequestStream(context.Background()))
	request := must(http.NewRequest(http.MethodConnect, base+"/ws", nil))
	request.Proto = "websocket"
	request.Header.Set("Sec-WebSocket-Version", "13")
	if err := stream.SendRequestHeader(request); err != nil {
		log.Fatal(err)
	}
	response := must(stream.ReadResponse())
	check(response.StatusCode == 200, response)
	message := strings.Repeat("m", 3000)
	frame := []byte{0x81, 0x80 | 126, 3000 >> 8, 3000 & 255, 1, 2, 3, 4}
	for at, one := range []byte(message) {
		frame = append(frame, one^byte(at%4+1))
	}
	must(stream.Write(frame))
	answer := make([]byte, 4+len(message))
	must(io.ReadFull(stream, answer))
	check(string(answer[4:]) == message, "the message differs")
	conn.CloseWithError(0x100, "")
}

func main() {
	port, megabytes := os.Args[1], must(strconv.ParseInt(os.Args[2], 10, 64))
	address, base = "127.0.0.1:"+port, "https://localhost:"+port
	var last *quic.Conn
	udp := must(net.ResolveUDPAddr("udp", address))
	transport := &quic.Transport{Conn: must(net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))}
	trip := &http3.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ClientSessionCache: tls.NewLRUClientSessionCache(10)},
		QUICConfig:      &quic.Config{MaxStreamReceiveWindow: 8 << 20, MaxConnectionReceiveWindow: 16 << 20},
		Dial: func(c context.Context, _ string, t *tls.Config, q *quic.Config) (*quic.Conn, error) {
			conn, err := transport.Dial(c, udp, t, q)
			last = conn
			return conn, err
		},
	}
	client := &http.Client{Transport: trip, Timeout: 10 * time.Minute}

	response := get(client, "/bytes?n=1000")
	check(response.Proto == "HTTP/3.0" && response.StatusCode == 200 && response.Header.Get("Length") == "1000", response)
	check(!last.ConnectionState().TLS.DidResume, "resumed")
	fmt.Println("handshake")

	var all sync.WaitGroup
	for number := range 100 {
		all.Add(1)
		go func() {
			defer all.Done()
			length := strconv.Itoa(10_000 + number)
			check(get(client, "/bytes?n="+length).Header.Get("Length") == length, "another length")
		}()
	}
	all.Wait()
	fmt.Println("100 streams")

	request := must(http.NewRequest("POST", base+"/echo", io.NopCloser(strings.NewReader("with trailers"))))
	request.Trailer = http.Header{"X-Sum": {"1"}}
	response = must(client.Do(request))
	check(string(must(io.ReadAll(response.Body))) == "with trailers", "the echo differs")
	fmt.Println("trailers")

	for range 3 {
		other := &quic.Transport{Conn: must(net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))}
		path := must(last.AddPath(other))
		patience, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		if err := path.Probe(patience); err != nil {
			log.Fatal("probe: ", err)
		}
		cancel()
		if err := path.Switch(); err != nil {
			log.Fatal("switch: ", err)
		}
		echo(client, 2_000_000)
	}
	fmt.Println("migration")

	begun := time.Now()
	echo(client, megabytes<<20)
	fmt.Printf("%d MiB up and down in %.1f s\n", megabytes, time.Since(begun).Seconds())

	socket(trip, transport, udp)
	fmt.Println("WebSocket")

	trip.CloseIdleConnections()
	last.CloseWithError(0x100, "")
	get(client, "/bytes?n=1")
	check(last.ConnectionState().TLS.DidResume, "not resumed")
	fmt.Println("resumption")
}
