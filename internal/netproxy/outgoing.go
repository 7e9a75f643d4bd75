package netproxy

import (
	"bytes"
	"net/http"
	"strconv"

	"github.com/execagent/execagent/internal/netproxy/head"
)

// appendRequest appends the head of a request as it goes to its destination, or to a hop
// before that: with its fields in their order and spelling, but for those that are about the
// connection.
func appendRequest(to []byte, r *head.Request, d destination, hop *hop) []byte {
	to = append(to, r.Method...)
	to = append(to, ' ')
	if hop != nil && !d.encrypt {
		to = append(to, "http://"...)
		to = appendAuthority(to, d)
	}
	to = append(to, d.path...)
	to = append(to, " HTTP/1."...)
	to = append(to, byte('0'+r.Minor), '\r', '\n')
	if !d.named {
		to = append(to, "Host: "...)
		to = appendAuthority(to, d)
		to = append(to, "\r\n"...)
	}
	// Whoever puts credentials in place of their placeholders does it with these fields.
	to = appendFields(to, r.Fields, false)
	if hop != nil && !d.encrypt && r.Method != http.MethodTrace { // which the hop itself may answer with what it got
		to = append(to, hop.credentials()...)
	}
	return append(to, "\r\n"...)
}

// appendAuthority appends host and port, as a URL has them.
func appendAuthority(to []byte, d destination) []byte {
	if bytes.IndexByte([]byte(d.host), ':') >= 0 {
		to = append(to, '[')
		to = append(to, d.host...)
		to = append(to, ']')
	} else {
		to = append(to, d.host...)
	}
	if d.encrypt && d.port == 443 || !d.encrypt && d.port == 80 {
		return to
	}
	return strconv.AppendUint(append(to, ':'), uint64(d.port), 10)
}

// appendResponse appends the head of an answer as it goes to the command. Its chunks are taken
// away, if it is for HTTP/1.0. Without keep, the connection ends with it.
func appendResponse(to []byte, a *head.Response, keep, old bool) []byte {
	to = append(to, "HTTP/1.1 "...)
	to = strconv.AppendInt(to, int64(a.Status), 10)
	to = append(to, ' ')
	to = append(to, a.Reason...)
	to = append(to, "\r\n"...)
	to = appendFields(to, a.Fields, old)
	if !keep {
		to = append(to, "connection: close\r\n"...)
	}
	return append(to, "\r\n"...)
}

// appendFields appends fields, but for those that are about the connection on which they came:
// some, and those that Connection names. How long the body is stays said, whatever Connection
// says, since the body is passed on in that way; chunks are left out, if they are taken away.
func appendFields(to []byte, fields []head.Field, unchunked bool) []byte {
	for _, f := range fields {
		framing := f.Is("content-length") || f.Is("transfer-encoding") || f.Is("host")
		if ofConnection(f) || !framing && named(fields, f.Name) || unchunked && f.Is("transfer-encoding") {
			continue
		}
		to = append(to, f.Name...)
		to = append(to, ": "...)
		to = append(to, f.Value...)
		to = append(to, "\r\n"...)
	}
	return to
}

// ofConnection reports whether a field is about one connection and not passed on.
func ofConnection(f head.Field) bool {
	switch len(f.Name) {
	case 2:
		return f.Is("te")
	case 7:
		return f.Is("trailer") || f.Is("upgrade")
	case 10:
		return f.Is("connection") || f.Is("keep-alive")
	case 16:
		return f.Is("proxy-connection")
	case 19:
		return f.Is("proxy-authorization")
	}
	return false
}

// named reports whether Connection names something.
func named(fields []head.Field, name []byte) bool {
	for _, f := range fields {
		if !f.Is("connection") && !f.Is("proxy-connection") {
			continue
		}
		for word := range bytes.SplitSeq(f.Value, []byte(",")) {
			if bytes.EqualFold(bytes.Trim(word, " \t"), name) {
				return true
			}
		}
	}
	return false
}

// closes reports whether who sent these fields ends the connection after the message.
func closes(fields []head.Field) bool { return named(fields, []byte("close")) }
