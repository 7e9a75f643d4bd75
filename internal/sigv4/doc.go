// Package sigv4 signs requests as AWS does (Signature Version 4), checks such signatures, and
// finds the credentials where AWS's own programs find them. A request is signed by its method,
// path, query, host, time and body: unlike a bearer token, what travels cannot be used for
// another request.
//
//	Keys     credentials; Sign puts a signature on a request
//	Claim    what a signed request says; Verify checks it with the secret
//	Source   auth.RequestSigner: keys from the environment, shared files, and the endpoints of
//	         containers and instances, fetched again before they expire
//
// Wire facts are in capabilities.md 7 and remote.md 10.
package sigv4
