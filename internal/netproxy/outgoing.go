package netproxy

import (
	"bytes"
	"net/http"
	"strconv"

	"github.com/execagent/execagent/internal/netproxy/head"
)

// appendRequest appends the head of a request in the form for its destination or for a hop. The
// fields keep their order and spelling; fields that concern only the connection are left out.
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
	// Proxy.restore has already put credentials in place of the placeholders in these fields.
	to = appendFields(to, r.Fields, false)
	if hop != nil && !d.encrypt && r.Method != http.MethodTrace { // the hop may answer TRACE with the fields it got
		to = append(to, hop.credentials()...)
	}
	return append(to, "\r\n"...)
}

// appendAuthority appends host and port in the form of a URL. A default port is left out.
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

// appendResponse appends the head of an answer in the form for the command. If old is true, the
// command speaks HTTP/1.0, and the head announces no chunks. If keep is false, the head says that
// the connection ends.
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

// appendFields appends fields, but leaves out fields that concern only the connection on which they
// came: those of ofConnection, and those that Connection names. Fields about the length of the body
// stay even if Connection names them, because the body is forwarded in that encoding. If unchunked
// is true, Transfer-Encoding is left out.
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

// ofConnection reports whether a field concerns one connection, so that it is not forwarded.
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

// named reports whether the field Connection or Proxy-Connection contains the name.
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

// closes reports whether the sender of these fields ends the connection after the message.
func closes(fields []head.Field) bool { return named(fields, []byte("close")) }
