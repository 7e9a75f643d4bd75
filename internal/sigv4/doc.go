// Package sigv4 signs requests as AWS does (Signature Version 4), checks such signatures, and finds
// credentials in the same places as AWS's own programs. A signature covers the method, path, query,
// host, time and body of a request. So, unlike a bearer token, it cannot be used for another
// request.
//
//	Keys     credentials; Sign puts a signature on a request
//	Claim    the contents of a signed request; Verify checks them with the secret
//	Source   auth.RequestSigner: keys from the environment, shared files, and the endpoints of
//	         containers and instances, fetched again before they expire
//
// The protocol is described in capabilities.md 7 and remote.md 10.
package sigv4
