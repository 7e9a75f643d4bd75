// Package httpclient sends the HTTP requests of http/request (rpc.md 6).
//
// A request goes out as the caller wrote it: no cookies, no user agent, and no defaults except Accept
// and Accept-Encoding. An answer that is encoded with gzip or zstd is decoded. net/http makes the
// connections and the framing. This package decides which redirects are followed, what they carry
// along and which proxy a request takes, because net/http would decide otherwise.
//
// All methods of a [Client] may be called concurrently.
package httpclient
