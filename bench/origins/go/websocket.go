package main

import (
	"bufio"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"
)

const (
	// RFC 6455 1.3.
	acceptSuffix = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
	payloadMax   = 1 << 24

	opClose = 8
	opPing  = 9
	opPong  = 10
)

// websocket returns each message unchanged (RFC 6455), and responds to a ping with a pong and to a close with a close.
func websocket(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Sec-WebSocket-Key")
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || key == "" {
		w.Header().Set("Upgrade", "websocket")
		http.Error(w, "this is a websocket", http.StatusUpgradeRequired)
		return
	}
	connection, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer connection.Close()
	sum := sha1.Sum([]byte(key + acceptSuffix))
	buffered.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Accept: " + base64.StdEncoding.EncodeToString(sum[:]) + "\r\n\r\n")
	for buffered.Flush() == nil {
		first, payload, err := readFrame(buffered.Reader)
		if err != nil {
			return
		}
		switch first & 15 {
		case opPing:
			writeFrame(buffered.Writer, 128|opPong, payload)
		case opPong:
		case opClose:
			writeFrame(buffered.Writer, 128|opClose, payload)
			buffered.Flush()
			return
		default:
			writeFrame(buffered.Writer, first, payload)
		}
	}
}

// readFrame returns a frame's first byte and its payload, unmasked (RFC 6455 5.2).
func readFrame(r *bufio.Reader) (byte, []byte, error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	length := uint64(head[1] & 127)
	var extended [8]byte
	switch length {
	case 126:
		if _, err := io.ReadFull(r, extended[6:]); err != nil {
			return 0, nil, err
		}
		length = binary.BigEndian.Uint64(extended[:])
	case 127:
		if _, err := io.ReadFull(r, extended[:]); err != nil {
			return 0, nil, err
		}
		length = binary.BigEndian.Uint64(extended[:])
	}
	if head[1]&128 == 0 || length > payloadMax {
		return 0, nil, errors.New("frame unmasked or too long")
	}
	var mask [4]byte
	if _, err := io.ReadFull(r, mask[:]); err != nil {
		return 0, nil, err
	}
	payload := make([]byte, length)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, err
	}
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	return head[0], payload, nil
}

// writeFrame writes a frame without a mask. The flush of the writer reports errors.
func writeFrame(w *bufio.Writer, first byte, payload []byte) {
	w.WriteByte(first)
	switch n := len(payload); {
	case n < 126:
		w.WriteByte(byte(n))
	case n < 1<<16:
		w.WriteByte(126)
		w.Write(binary.BigEndian.AppendUint16(nil, uint16(n)))
	default:
		w.WriteByte(127)
		w.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
	}
	w.Write(payload)
}
