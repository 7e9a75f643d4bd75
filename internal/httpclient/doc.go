// Package httpclient sends the HTTP requests of http/request (rpc.md 6).
//
// A request goes out as the caller wrote it: no cookies, no user agent, no
// compression, and no default but Accept. net/http makes the connections and the
// framing. Which redirects are followed, what they take along and which proxy a
// request takes is decided here, since net/http would decide otherwise.
//
// All methods of a [Client] may run at once.
package httpclient
