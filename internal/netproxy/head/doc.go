// Package head reads HTTP/1 from a connection so strictly that every reader of the same
// bytes finds the same messages in them. A proxy reads with this package first, because the
// proxy and the server must agree where a request ends, what its destination is and which
// bytes are its body. Libraries repair ambiguous messages before anybody can refuse them.
//
//	r := head.NewReader(conn)
//	req, err := r.Request()          // its first line and fields
//	err = r.Body(req.Length).Forward(destination, req.Length == head.Chunked)
//
// A line ends with CRLF and with nothing else. Folded lines, spaces before a colon and
// control characters are refused. A body has one length: one Content-Length of digits, or
// one Transfer-Encoding that is exactly "chunked", never both. Everything is bounded: a
// head by [maxHead] and [maxFields], all heads together by a [Room], a line between chunks
// by [maxChunkLine].
//
// An error can be logged: its text comes from this package alone and never quotes the bytes that
// were read.
package head
