// Package socket is one WebSocket of the relay (remote.md 4), at either end:
// whole binary messages in pooled buffers, and many lanes that share the way
// out.
//
// Each stream writes to a [Lane] of its own. The frames of a lane keep their order.
// Between lanes the [Socket] decides: the lanes take turns, one frame each. Small
// frames go before bulk frames, but never so many of them that bulk frames stop. A sender
// that finds the socket idle writes its frame itself, without a change of goroutine.
// Under load a goroutine writes the frames, and combines small frames into one
// system call. It ends when the load ends.
//
//	s, err := socket.Dial(ctx, url, header, socket.Config{})
//	...
//	lane := s.NewLane(0)
//	m := socket.NewMessage(len(text))
//	m.Bytes = append(m.Bytes, text...)
//	err = lane.Send(m) // releases m
//
// A close frame is never sent. A text message only fails the Read that receives it. The
// socket stays open.
package socket
