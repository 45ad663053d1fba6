package lpc

import (
	"context"
	"fmt"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"

	"learnedprefixcache/lpcv1"
)

func init() { encoding.RegisterCodec(codec{}) } // for the server below

const mostBytes = 4096

func curves(hazard float32) *lpcv1.ReuseCurves {
	hazards := make([]float32, len(Edges)-1)
	hazards[0] = hazard
	return &lpcv1.ReuseCurves{Epoch: "e", EdgesS: Edges, Curves: []*lpcv1.ReuseCurve{{Group: 1, Hazards: hazards}}}
}

// A sidecar that answers with group 1 of its curves.
type sidecar struct {
	lpcv1.UnimplementedContinuationPredictorServer
	mutex   sync.Mutex
	curves  *lpcv1.ReuseCurves
	version uint64
	sent    int
}

func (s *sidecar) Predict(_ context.Context, request *lpcv1.PredictRequest) (*lpcv1.PredictResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	answer := &lpcv1.PredictResponse{Prediction: &lpcv1.Prediction{ReuseGroup: 1}, CurvesVersion: s.version}
	for _, version := range request.KnownCurves {
		if version == s.version {
			return answer, nil
		}
	}
	s.sent++
	answer.ReuseCurves = s.curves
	return answer, nil
}

func served(t *testing.T, s *sidecar) *Client {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(mostBytes))
	lpcv1.RegisterContinuationPredictorServer(server, s)
	go server.Serve(listener)
	client, err := Dial(listener.Addr().String(), "", grpc.WithInsecure())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		server.Stop()
	})
	return client
}

// Asks until there is an answer.
func answered(t *testing.T, c *Client, id string) Answer {
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		c.mutex.Lock()
		asked := c.book.lines[id]
		here := asked != nil && asked.Value.(*line).answered
		c.mutex.Unlock()
		if here {
			answer, _ := c.Take(id)
			return answer
		}
		if asked == nil {
			c.Ask(id, said("hello"))
		}
	}
	t.Fatal("no answer to " + id)
	return Answer{}
}

func said(prompt string) *lpcv1.Conversation {
	return &lpcv1.Conversation{Input: &lpcv1.Conversation_Prompt{Prompt: prompt}}
}

func TestWhatCannotBeSentCostsTheOthersNothing(t *testing.T) {
	c := served(t, &sidecar{curves: curves(0.5), version: 1})
	answered(t, c, "first")
	c.Ask("no text", said("\xff"))
	c.Ask("too long", said(strings.Repeat("x", 2*mostBytes)))
	answered(t, c, "second")
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c.mutex.Lock()
		left := len(c.book.lines)
		c.mutex.Unlock()
		if left == 0 {
			return
		}
		if time.Now().After(until) {
			t.Fatal("they are waited for")
		}
	}
}

func TestAnAnswerHasTheValuesOfItsGroup(t *testing.T) {
	s := &sidecar{}
	c := served(t, s)
	other := curves(0.25)
	other.EdgesS = Edges[1:]
	for n, of := range []struct {
		curves *lpcv1.ReuseCurves
		want   Table
	}{
		{curves(0.5), Values(curves(0.5).Curves[0].Hazards)},
		{curves(0.25), Values(curves(0.25).Curves[0].Hazards)},
		{curves(2), nil},
		{other, nil},
	} {
		s.mutex.Lock()
		s.curves, s.version, s.sent = of.curves, uint64(n+1), 0
		s.mutex.Unlock()
		for _, id := range []string{"a", "b"} {
			if got := answered(t, c, id).Table; !reflect.DeepEqual(got, of.want) {
				t.Fatal(n, got)
			}
		}
		if s.sent != 1 {
			t.Fatal("the curves were sent", s.sent, "times")
		}
	}
}

func TestWhatNobodyComesBackForStopsNothing(t *testing.T) {
	b := newBook(100)
	cancelled := 0
	for n := 0; n < 1000; n++ {
		id := fmt.Sprint(n)
		asked := b.ask(id, func() { cancelled++ })
		if n%3 == 0 {
			b.forget(id)
		} else {
			b.answer(asked, Answer{})
		}
		if n%7 == 0 {
			b.ask("again", func() { cancelled++ })
		}
	}
	if len(b.lines) > 100 || b.order.Len() != len(b.lines) {
		t.Fatal(len(b.lines), b.order.Len())
	}
	if asked := 1000 + 143; cancelled != asked-len(b.lines) {
		t.Fatal(cancelled, "of", asked, "calls ended")
	}
	if _, ok := b.take("998"); !ok {
		t.Fatal("the latest is forgotten")
	}
}
