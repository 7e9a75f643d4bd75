// Package protocol is the wire: the messages, the records of every method, the
// error codes and the path URIs. It runs nothing and opens nothing; other packages
// decide what a request means.
//
// # Messages
//
// JSON-RPC 2.0 without its "jsonrpc" member, one object a message. The members of a
// message say which of four kinds it is:
//
//	{"id":1,"method":"process/read","params":{"processId":"p"}}        request
//	{"id":1,"result":{"chunks":[],"nextSeq":1}}                        result
//	{"id":1,"error":{"code":-32600,"message":"unknown process id p"}}  error
//	{"method":"process/closed","params":{"processId":"p","seq":4}}     notification
//
// The client asks and the server answers, in any order: only the id ties an answer
// to its request. Of notifications the client sends only initialized; the server
// sends process/output, process/exited, process/closed, http/request/bodyDelta and
// fs/missingChanged.
//
// An [ID] is a string or a signed 64-bit integer, chosen by the side that sends the
// request, and comes back as it was sent. A message that could not be read is
// answered with -1 ([NoID]).
//
// [Decode] reads strictly: names are compared exactly, names must not repeat, and the depth and the
// number of values are bounded (rpc.md 2.4). Unknown members are ignored, except in the params of
// methods that have none ([EmptyParams]).
//
// # Records
//
// Records of params and large results read themselves member by member from an [Object]
// ([Unmarshaler]), by exact names and with errors that name the member. Large or frequent results
// write themselves ([Appender]). All other records go through encoding/json. Bytes travel as
// base64, standard alphabet, padded.
//
//	m, err := protocol.Decode(data)
//	var p protocol.ReadParams
//	err = protocol.UnmarshalParams(m.Params, &p)
//	answer, err := protocol.AppendResult(nil, m.ID, &protocol.ReadResult{NextSeq: 1})
//
// # Errors
//
// [Error] is the error member, and the one Go error that has a [Code]. There are
// six codes; a client decides by them what to do next.
//
// # Paths
//
// Paths travel as file URIs and become native ones in [PathURI]: "file:///a%20b" is
// "/a b". A URI that is well formed but names nothing on Linux, such as one with
// another host, is refused only where its path is used ([ForeignPathError]).
//
// # Where it is specified
//
// In docs/protocol: rpc.md, sections 2, 5.1 and 7 for messages, 3 to 6 for the
// methods of the reference and 8 for those that only execagent has; sandbox.md,
// sections 1 to 4.
package protocol
