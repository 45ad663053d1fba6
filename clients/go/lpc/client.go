package lpc

import (
	"context"
	"math/rand"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"learnedprefixcache/lpcv1"
)

const (
	// Waiting is how many questions and answers are remembered; over it new questions are not asked.
	Waiting = 8192
	// Timeout is the age at which an answer is worthless.
	Timeout = 10 * time.Second

	connectTimeout = 5 * time.Second
	firstPause     = 100 * time.Millisecond
	longestPause   = 5 * time.Second
)

// An Answer is a credit table and the grid that it belongs to.
type Answer struct {
	Probability float64
	Table       []float32
	Grid        Grid
}

// Client holds one stream to a sidecar and opens it again whenever it breaks. Safe for concurrent use. No method waits, and
// none fails: what is not answered is LRU.
type Client struct {
	address string
	token   string
	options []grpc.DialOption
	stop    context.CancelFunc
	done    chan struct{}

	mutex     sync.Mutex
	questions chan *lpcv1.PredictStreamRequest // of the stream that is open; nil: none is
	asked     map[string]time.Time
	answers   map[string]Answer
}

// Dial returns a client of the sidecar at host:port or unix:///path. token: of its token file, "" where it asks for none.
// options say how to connect: grpc.WithInsecure() or grpc.WithTransportCredentials(...).
func Dial(address, token string, options ...grpc.DialOption) *Client {
	ctx, stop := context.WithCancel(context.Background())
	c := &Client{address: address, token: token, options: options, stop: stop, done: make(chan struct{})}
	c.forgetAll()
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
	if c.questions == nil || len(c.asked) >= Waiting || len(c.answers) >= Waiting {
		return
	}
	question := &lpcv1.PredictStreamRequest{
		RequestId: id,
		TimeoutMs: uint32(Timeout / time.Millisecond),
		Action:    &lpcv1.PredictStreamRequest_Conversation{Conversation: conversation},
	}
	select {
	case c.questions <- question:
		c.asked[id] = time.Now()
	default:
	}
}

// Take returns the answer about a request, once, if it is there; expected: it is not, but may still come.
func (c *Client) Take(id string) (answer Answer, answered, expected bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	answer, answered = c.answers[id]
	delete(c.answers, id)
	if since, waits := c.asked[id]; waits && !answered {
		expected = time.Since(since) < Timeout
		if !expected {
			delete(c.asked, id)
		}
	}
	return answer, answered, expected
}

// Forget forgets a request, which was aborted.
func (c *Client) Forget(id string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.asked, id)
	delete(c.answers, id)
}

// Connected says whether a stream is open.
func (c *Client) Connected() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.questions != nil
}

func (c *Client) forgetAll() {
	c.questions = nil
	c.asked = map[string]time.Time{}
	c.answers = map[string]Answer{}
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
	grid := Grid(info.CreditLifetimesS)
	if grid.Check() != nil {
		return
	}
	stream, err := stub.PredictStream(ctx)
	if err != nil {
		return
	}
	capacity := int(info.GetLimits().GetMaxStreamInFlight())
	if capacity < 1 || capacity > Waiting {
		capacity = Waiting
	}
	questions := make(chan *lpcv1.PredictStreamRequest, capacity)
	c.mutex.Lock()
	c.questions = questions
	c.mutex.Unlock()
	defer func() {
		c.mutex.Lock()
		answers := c.answers // what was answered stays
		c.forgetAll()
		c.answers = answers
		c.mutex.Unlock()
	}()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case question := <-questions:
				if stream.Send(question) != nil {
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
		c.mutex.Lock()
		if _, asked := c.asked[response.RequestId]; asked {
			delete(c.asked, response.RequestId)
			if p := response.GetPrediction(); p != nil && len(p.CreditS) == len(grid) {
				c.answers[response.RequestId] = Answer{p.Probability, p.CreditS, grid}
			}
		}
		c.mutex.Unlock()
	}
}
