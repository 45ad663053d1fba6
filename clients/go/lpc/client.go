// Package lpc asks the sidecar when the requests of an engine will return, for engines that evict prefix-cache blocks themselves.
//
// Client asks over one PredictStream; an answer has the retention values of the request's reuse group by age. Retainer makes them
// one number, the retain seconds: how long after their last use the request's blocks are worth their room. Nothing here waits
// for the sidecar.
package lpc

import (
	"context"
	"math/rand"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"learnedprefixcache/lpcv1"
)

const (
	// Waiting is how many questions and answers are remembered; over it the oldest is forgotten.
	Waiting = 8192
	// Timeout is the age at which an answer is worthless.
	Timeout = 10 * time.Second

	connectTimeout = 5 * time.Second
	firstPause     = 100 * time.Millisecond
	longestPause   = 5 * time.Second
	// A stream on which questions wait is left when nothing was heard on it for so long: a peer that is gone without a word.
	longestSilence = 10 * time.Second
)

// An Answer is what the sidecar predicts of a request.
type Answer struct {
	// Probability that the conversation goes on.
	Probability float64
	// Table has the retention values of the request's reuse group; nil: nothing is known.
	Table Table
}

// Client holds one stream to a sidecar and opens it again whenever it breaks. Safe for concurrent use. No method waits, and
// none fails.
type Client struct {
	address string
	token   string
	options []grpc.DialOption
	silence time.Duration
	stop    context.CancelFunc
	done    chan struct{}

	mutex     sync.Mutex
	questions chan *lpcv1.PredictStreamRequest // of the stream that is open; nil: none is
	book      *book
	heard     time.Time
}

// Dial returns a client of the sidecar at host:port or unix:///path. token: of its token file, "" where it asks for none.
// options say how to connect: grpc.WithInsecure() or grpc.WithTransportCredentials(...).
func Dial(address, token string, options ...grpc.DialOption) *Client {
	return dial(address, token, longestSilence, options...)
}

func dial(address, token string, silence time.Duration, options ...grpc.DialOption) *Client {
	ctx, stop := context.WithCancel(context.Background())
	c := &Client{
		address: address, token: token, options: options, silence: silence,
		stop: stop, done: make(chan struct{}), book: newBook(Waiting),
	}
	go c.run(ctx)
	return c
}

// Close hangs up.
func (c *Client) Close() {
	c.stop()
	<-c.done
}

// Ask asks about a request, under an id of the engine's choice. Call it when the request is admitted.
func (c *Client) Ask(id string, conversation *lpcv1.Conversation) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.questions == nil {
		return
	}
	question := &lpcv1.PredictStreamRequest{
		RequestId: id,
		TimeoutMs: uint32(Timeout / time.Millisecond),
		Action:    &lpcv1.PredictStreamRequest_Conversation{Conversation: conversation},
	}
	select {
	case c.questions <- question:
		c.book.ask(id, time.Now())
	default:
	}
}

// Take returns the answer about a request and forgets the request; false: there is none. Call it when the request ends, or was
// aborted.
func (c *Client) Take(id string) (Answer, bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.book.take(id)
}

// Connected says whether a stream is open.
func (c *Client) Connected() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.questions != nil
}

func (c *Client) run(ctx context.Context) {
	defer close(c.done)
	pause := firstPause
	for ctx.Err() == nil {
		opened := time.Now()
		c.serve(ctx)
		if time.Since(opened) > longestPause {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + time.Duration(rand.Int63n(int64(pause)))):
		}
		if pause *= 2; pause > longestPause {
			pause = longestPause
		}
	}
}

// serve holds one connection until it breaks. What was asked on it and not answered is forgotten.
func (c *Client) serve(parent context.Context) {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	if c.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
	}
	dialing, dialed := context.WithTimeout(ctx, connectTimeout)
	defer dialed()
	options := []grpc.DialOption{grpc.WithBlock(), grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{}))}
	connection, err := grpc.DialContext(dialing, c.address, append(options, c.options...)...)
	if err != nil {
		return
	}
	defer connection.Close()
	stub := lpcv1.NewContinuationPredictorClient(connection)
	info, err := stub.GetModelInfo(dialing, &lpcv1.GetModelInfoRequest{})
	if err != nil {
		return
	}
	curved := info.ReuseCurves != nil && sameEdges(info.ReuseEdgesS)
	var tables map[uint32]Table
	if curved {
		tables, err = tablesOf(info.ReuseCurves)
		curved = err == nil
	}
	stream, err := stub.PredictStream(ctx)
	if err != nil {
		return
	}
	most := int(info.GetLimits().GetMaxRequestBytes())
	capacity := int(info.GetLimits().GetMaxStreamInFlight())
	if capacity < 1 || capacity > Waiting {
		capacity = Waiting
	}
	questions := make(chan *lpcv1.PredictStreamRequest, capacity)
	c.mutex.Lock()
	c.questions, c.heard = questions, time.Now()
	c.mutex.Unlock()
	defer func() {
		c.mutex.Lock()
		c.questions = nil
		c.book.forgetUnanswered()
		c.mutex.Unlock()
	}()
	go c.watch(ctx, cancel)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case question := <-questions:
				// What cannot be sent would end the stream, and with it what all others have asked.
				message, err := proto.Marshal(question)
				if err != nil || (most > 0 && len(message) > most) {
					c.Take(question.RequestId)
				} else if stream.SendMsg(encoded(message)) != nil {
					cancel()
					return
				}
			}
		}
	}()
	for {
		response, err := stream.Recv()
		if err != nil {
			return
		}
		if curves := response.GetReuseCurves(); curves != nil && curved {
			if changed, err := tablesOf(curves); err == nil {
				tables = changed
			}
		}
		c.mutex.Lock()
		c.heard = time.Now()
		if p := response.GetPrediction(); p != nil {
			c.book.answer(response.RequestId, Answer{p.Probability, tables[p.ReuseGroup]})
		} else {
			c.book.forget(response.RequestId)
		}
		c.mutex.Unlock()
	}
}

// watch leaves a peer that has fallen silent while questions wait.
func (c *Client) watch(ctx context.Context, leave func()) {
	tick := time.NewTicker(c.silence / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c.mutex.Lock()
		since, waits := c.book.waitsSince()
		silent := waits && time.Since(since) > c.silence && time.Since(c.heard) > c.silence
		c.mutex.Unlock()
		if silent {
			leave()
			return
		}
	}
}
