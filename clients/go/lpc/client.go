// Package lpc asks the sidecar when the requests of an engine will return, for engines that evict prefix-cache blocks themselves.
//
// Client makes a call for each request; an answer has the retention values of the request's reuse group by age. Retainer makes
// them one number, the retain seconds: how long after their last use the request's blocks are worth their room. Nothing here
// waits for the sidecar.
package lpc

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"learnedprefixcache/lpcv1"
)

const (
	// Waiting is how many questions and answers are remembered; over it the oldest is forgotten.
	Waiting = 8192
	// Timeout is the age at which an answer is worthless.
	Timeout = 10 * time.Second

	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second
	// Versions of curves that are remembered: one for each sidecar, and those that came before.
	mostVersions = 64
	balancing    = `{"loadBalancingConfig": [{"round_robin": {}}]}`
)

// An Answer is what the sidecar predicts of a request.
type Answer struct {
	// Probability that the conversation goes on.
	Probability float64
	// Table has the retention values of the request's reuse group; nil: nothing is known.
	Table Table
}

// Client asks the sidecars behind an address in turn. gRPC connects, and connects again. Safe for concurrent use. No method
// waits, and none fails.
type Client struct {
	ctx        context.Context
	stop       context.CancelFunc
	connection *grpc.ClientConn
	stub       lpcv1.ContinuationPredictorClient

	mutex    sync.Mutex
	book     *book
	tables   map[uint64]map[uint32]Table // by version of curves
	versions []uint64                    // in the order in which they came
}

// Dial returns a client of the sidecar at host:port, unix:///path or another address of gRPC's. token: of its token file, ""
// where it asks for none. options say how to connect: grpc.WithInsecure() or grpc.WithTransportCredentials(...).
func Dial(address, token string, options ...grpc.DialOption) (*Client, error) {
	if !strings.Contains(address, ":///") && !strings.HasPrefix(address, "unix:") {
		address = "dns:///" + address
	}
	ctx, stop := context.WithCancel(context.Background())
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	connection, err := grpc.Dial(address, append([]grpc.DialOption{
		grpc.WithDefaultServiceConfig(balancing),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{}), grpc.WaitForReady(true)),
	}, options...)...)
	if err != nil {
		stop()
		return nil, err
	}
	return &Client{
		ctx: ctx, stop: stop, connection: connection, stub: lpcv1.NewContinuationPredictorClient(connection),
		book: newBook(Waiting), tables: map[uint64]map[uint32]Table{},
	}, nil
}

// Close hangs up.
func (c *Client) Close() {
	c.stop()
	c.connection.Close()
}

// Ask asks about a request, under an id of the engine's choice. Call it when the request is admitted.
func (c *Client) Ask(id string, conversation *lpcv1.Conversation) {
	ctx, cancel := context.WithTimeout(c.ctx, Timeout)
	c.mutex.Lock()
	asked := c.book.ask(id, cancel)
	request := &lpcv1.PredictRequest{Conversation: conversation, KnownCurves: append([]uint64{0}, c.versions...)}
	c.mutex.Unlock()
	go func() {
		defer cancel()
		response, err := c.stub.Predict(ctx, request)
		c.mutex.Lock()
		defer c.mutex.Unlock()
		if err != nil {
			c.book.fail(asked)
			return
		}
		c.book.answer(asked, Answer{response.GetPrediction().GetProbability(), c.table(response)})
	}()
}

// Take returns the answer about a request and forgets the request; false: there is none. Call it when the request ends, or was
// aborted.
func (c *Client) Take(id string) (Answer, bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.book.take(id)
}

// Connected says whether a sidecar is connected.
func (c *Client) Connected() bool {
	return c.connection.GetState() == connectivity.Ready
}

// table returns the values of an answer's group; nil where nothing is known. It keeps the curves that the answer brings. With the
// mutex held.
func (c *Client) table(response *lpcv1.PredictResponse) Table {
	version := response.GetCurvesVersion()
	if curves := response.GetReuseCurves(); curves != nil && version != 0 && c.tables[version] == nil {
		tables, err := tablesOf(curves)
		if err != nil {
			tables = map[uint32]Table{}
		}
		c.tables[version] = tables
		c.versions = append(c.versions, version)
		if len(c.versions) > mostVersions {
			delete(c.tables, c.versions[0])
			c.versions = c.versions[1:]
		}
	}
	return c.tables[version][response.GetPrediction().GetReuseGroup()]
}
