package agent

import (
	"context"
	"encoding/json"

	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// Families of methods, as errors before the handshake name them.
const (
	famProcess = "exec"
	famSession = "session"
	famFiles   = "filesystem"
	famHTTP    = "http"
	famSockets = "socket"
	famInfo    = "environment info"
	famStatus  = "environment status"
	famConfig  = "environment config"
	famSkills  = "capability discovery"
)

// table is the protocol's table of contents: all methods, and the order of each
// (rpc.md 2.6).
func (c *connection) table() rpc.Table {
	var (
		first   = rpc.Order{Inline: true}
		instant = rpc.Order{Urgent: true}
		free    = rpc.Order{}
		process = rpc.Order{Queue: processQueue}
		input   = rpc.Order{Queue: processQueue, Piece: inputPiece}
		whole   = rpc.Order{Queue: processQueue, Piece: wholeInput}
		control = rpc.Order{Queue: processQueue, Urgent: true}
		socket  = rpc.Order{Queue: socketQueue}
		hangUp  = rpc.Order{Queue: socketQueue, Urgent: true}
		reads   = rpc.Order{Queue: rpc.InQueue("files"), Shared: true}
		mutates = rpc.Order{Queue: rpc.InQueue("files")}
		opens   = rpc.Order{Queue: rpc.InQueue("files"), Piece: wholeFile}
		blocks  = rpc.Order{Queue: rpc.InQueue("files"), Piece: blockPiece}
		closes  = rpc.Order{Queue: rpc.InQueue("files"), Piece: wholeFile, Urgent: true}
		lists   = rpc.Order{Queue: rpc.InQueue("list")}         // one at a time: each can be long
		finds   = rpc.Order{Queue: rpc.InQueue("capabilities")} // the same
	)
	return rpc.Table{
		protocol.MethodInitialize:        {Handle: rpc.Handle(c.initialize), Order: first},
		protocol.MethodEnvironmentInfo:   {Handle: serve(c, famInfo, c.environmentInfo), Order: instant},
		protocol.MethodEnvironmentStatus: {Handle: serve(c, famStatus, c.environmentStatus), Order: instant},
		protocol.MethodConfigRead:        {Handle: serve(c, famConfig, c.readConfig), Order: free},

		protocol.MethodProcessStart:      {Handle: serve(c, famProcess, c.startProcess), Order: whole},
		protocol.MethodProcessRead:       {Handle: serve(c, famProcess, c.readProcess), Order: process},
		protocol.MethodProcessWrite:      {Handle: serve(c, famProcess, c.writeProcess), Order: input},
		protocol.MethodProcessCloseStdin: {Handle: serve(c, famProcess, c.closeStdin), Order: whole},
		protocol.MethodProcessResize:     {Handle: serve(c, famProcess, c.resizeProcess), Order: process},
		protocol.MethodProcessSignal:     {Handle: serve(c, famProcess, c.signalProcess), Order: control},
		protocol.MethodProcessTerminate:  {Handle: serve(c, famProcess, c.terminateProcess), Order: control},
		protocol.MethodProcessList:       {Handle: serve(c, famProcess, c.listProcesses), Order: lists},

		protocol.MethodSessionList: {Handle: serve(c, famSession, c.listSessions), Order: lists},
		protocol.MethodSessionEnd:  {Handle: serve(c, famSession, c.endSession), Order: free},

		protocol.MethodFSReadFile:        {Handle: serve(c, famFiles, withFile(c, c.readFile)), Order: reads},
		protocol.MethodFSGetMetadata:     {Handle: serve(c, famFiles, withFile(c, c.getMetadata)), Order: reads},
		protocol.MethodFSGetMetadataMany: {Handle: serve(c, famFiles, withFile(c, c.getMetadataMany)), Order: reads},
		protocol.MethodFSCanonicalize:    {Handle: serve(c, famFiles, c.canonicalize), Order: reads},
		protocol.MethodFSReadDirectory:   {Handle: serve(c, famFiles, withFile(c, c.readDirectory)), Order: reads},
		protocol.MethodFSWalk:            {Handle: serve(c, famFiles, withFile(c, c.walk)), Order: reads},
		protocol.MethodFSReadBlock:       {Handle: serve(c, famFiles, withHandle(c, c.readBlock)), Order: reads},
		protocol.MethodFSOpen:            {Handle: serve(c, famFiles, withHandle(c, c.open)), Order: opens},
		protocol.MethodFSWriteBlock:      {Handle: serve(c, famFiles, withHandle(c, c.writeBlock)), Order: blocks},
		protocol.MethodFSClose:           {Handle: serve(c, famFiles, withHandle(c, c.closeHandle)), Order: closes},
		protocol.MethodFSWriteFile:       {Handle: serve(c, famFiles, withFile(c, c.writeFile)), Order: mutates},
		protocol.MethodFSCreateDirectory: {Handle: serve(c, famFiles, c.createDirectory), Order: mutates},
		protocol.MethodFSRemove:          {Handle: serve(c, famFiles, withFile(c, c.remove)), Order: mutates},
		protocol.MethodFSCopy:            {Handle: serve(c, famFiles, withFile(c, c.copy)), Order: mutates},
		protocol.MethodFSRename:          {Handle: serve(c, famFiles, c.rename), Order: mutates},
		protocol.MethodFSApplyPatch:      {Handle: serve(c, famFiles, withFile(c, c.applyPatch)), Order: mutates},
		protocol.MethodFSWatchMissing:    {Handle: serve(c, famFiles, c.watchMissing), Order: mutates},
		protocol.MethodFSWatch:           {Handle: serve(c, famFiles, c.watchFiles), Order: reads},
		protocol.MethodFSUnwatch:         {Handle: serve(c, famFiles, c.unwatchFiles), Order: mutates},

		protocol.MethodFSSearch:    {Handle: serve(c, famFiles, withFile(c, c.search)), Order: reads},
		protocol.MethodPortList:    {Handle: serve(c, famSockets, c.listPorts), Order: lists},
		protocol.MethodPortWatch:   {Handle: serve(c, famSockets, c.watchPorts), Order: lists},
		protocol.MethodPortUnwatch: {Handle: serve(c, famSockets, c.unwatchPorts), Order: lists},

		protocol.MethodSocketOpen:   {Handle: serve(c, famSockets, c.openSocket), Order: socket},
		protocol.MethodSocketWrite:  {Handle: serve(c, famSockets, c.writeSocket), Order: socket},
		protocol.MethodSocketAck:    {Handle: serve(c, famSockets, c.acknowledgeSocket), Order: instant},
		protocol.MethodSocketResume: {Handle: serve(c, famSockets, c.resumeSocket), Order: socket},
		protocol.MethodSocketClose:  {Handle: serve(c, famSockets, c.closeSocket), Order: hangUp},

		protocol.MethodDiscoverRoots:     {Handle: serve(c, famSkills, c.discoverRoots), Order: finds},
		protocol.MethodDiscoverInstalled: {Handle: serve(c, famSkills, c.discoverInstalled), Order: finds},

		protocol.MethodHTTPRequest: {Handle: serve(c, famHTTP, c.httpRequest), Order: free},
	}
}

// processQueue names the queue of a request's process.
func processQueue(params json.RawMessage) string { return queueOf("process", params, "processId") }

// socketQueue names the queue of a request's socket.
func socketQueue(params json.RawMessage) string { return queueOf("socket", params, "socketId") }

func queueOf(what string, params json.RawMessage, member string) string {
	if id, ok := strictjson.StringMember(params, member); ok {
		return what + " " + id
	}
	return "" // its handler refuses it
}

// The input of a process is a stream. A start and the end of the input leave nothing of it missing, so
// both have the order whole.
func inputPiece(params json.RawMessage) (stream, piece string) {
	piece, ok := strictjson.StringMember(params, "writeId")
	if !ok || piece == "" {
		return "", "" // its handler refuses it
	}
	return processQueue(params), piece
}

func wholeInput(params json.RawMessage) (stream, piece string) { return processQueue(params), "" }

// The blocks that are written to an open file are a stream, too.
func blockPiece(params json.RawMessage) (stream, piece string) {
	return queueOf("file", params, "handleId"), string(strictjson.Member(params, "offset"))
}

func wholeFile(params json.RawMessage) (stream, piece string) {
	return queueOf("file", params, "handleId"), ""
}

// serve refuses requests that come before the handshake. It reads their params
// first, so that wrong params are the error: the reference checks in this order
// (rpc.md 2.3).
func serve[P, R any, PP interface {
	*P
	strictjson.Unmarshaler
}](c *connection, family string, handler func(context.Context, P) (R, error)) rpc.Handler {
	return rpc.Handle[P, R, PP](func(ctx context.Context, params P) (result R, err error) {
		if err := c.ready(family); err != nil {
			return result, err
		}
		result, err = handler(ctx, params)
		c.agent.short.Note(c.agent.cfg.Logger, "a request fails", err)
		return result, err
	})
}

// withFile counts a descriptor for requests that may take long with a file open.
func withFile[P, R any](c *connection, handler func(context.Context, P) (R, error)) func(context.Context, P) (R, error) {
	return func(ctx context.Context, params P) (result R, err error) {
		release, err := takeDescriptors(c.owner, 1)
		if err != nil {
			return result, err
		}
		defer release()
		return handler(ctx, params)
	}
}

// withHandle is for requests that name a file handle. Each of them may close it, because an error closes
// a handle too.
func withHandle[P, R any](c *connection, handler func(context.Context, P) (R, error)) func(context.Context, P) (R, error) {
	return func(ctx context.Context, params P) (R, error) {
		defer c.releaseHandles()
		return handler(ctx, params)
	}
}
