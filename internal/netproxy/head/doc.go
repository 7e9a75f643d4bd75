// Package head reads HTTP/1 from a connection so strictly that everybody who reads the same
// bytes finds the same messages in them. It stands in front of all else that a proxy does:
// what decides about a request and the server that gets it must not differ about where the
// request ends, what its destination is and which bytes are its body. Libraries repair such
// messages before anybody can refuse them.
//
//	r := head.NewReader(conn)
//	req, err := r.Request()          // its first line and fields
//	err = r.Body(req.Length).Forward(destination, req.Length == head.Chunked)
//
// A line ends with CRLF and with nothing else. Nothing is folded, a name is followed by its
// colon at once, no control character is let through. A body has one length: one
// Content-Length of digits, or one Transfer-Encoding that is exactly "chunked", never both.
// Everything is bounded: a head by [maxHead] and [maxFields], what all heads have by a
// [Room], a line between chunks by [maxChunkLine].
//
// An error says what is wrong in words of this package. It never has a part of what was read,
// so it can be logged.
package head
