package waltzctl.interop;

import com.wepay.riff.network.Message;
import com.wepay.riff.network.MessageCodec;
import com.wepay.riff.network.MessageHandler;
import com.wepay.riff.network.MessageHandlerCallbacks;
import com.wepay.riff.network.NetworkClient;
import io.netty.channel.ChannelHandlerContext;
import io.netty.handler.ssl.SslContext;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** One connection to a port of a node; answers are taken in the order in which they come. */
final class Peer extends NetworkClient {
    private static final long PATIENCE = 60;

    private final String text;
    private final Map<Short, MessageCodec> codecs = new HashMap<>();
    private final BlockingQueue<FieldMessage> answers = new LinkedBlockingQueue<>();
    private final CountDownLatch greeted = new CountDownLatch(1);
    private final CountDownLatch ended = new CountDownLatch(1);
    private Handler handler;

    Peer(String host, int port, SslContext tls, String text, MessageCodec... codecs) {
        super(host, port, tls);
        this.text = text;
        for (MessageCodec codec : codecs) {
            this.codecs.put(codec.version(), codec);
        }
    }

    /** Connects, and waits for the greeting of the node. */
    Peer greet() throws Exception {
        open();
        await(greeted, "a greeting");
        return this;
    }

    void send(FieldMessage message) throws IOException {
        if (!sendMessage(message)) {
            throw new IOException("not sent: " + message);
        }
    }

    FieldMessage answer() throws Exception {
        FieldMessage message = answers.poll(PATIENCE, TimeUnit.SECONDS);
        if (message == null) {
            throw new IOException("no answer");
        }
        return message;
    }

    FieldMessage ask(FieldMessage message) throws Exception {
        send(message);
        return answer();
    }

    void keepAlive() {
        handler.sendKeepAlive();
    }

    void awaitEnd() throws Exception {
        await(ended, "the end of the connection");
    }

    private static void await(CountDownLatch latch, String what) throws Exception {
        if (!latch.await(PATIENCE, TimeUnit.SECONDS)) {
            throw new IOException("waited in vain for " + what);
        }
    }

    @Override
    protected MessageHandler getMessageHandler() {
        handler = new Handler();
        return handler;
    }

    private final class Handler extends MessageHandler {
        private ChannelHandlerContext context;

        Handler() {
            super(codecs, text, new Callbacks(), 30, 60);
        }

        @Override
        public void handlerAdded(ChannelHandlerContext added) throws Exception {
            context = added;
            super.handlerAdded(added);
        }

        @Override
        protected void process(Message message) {
            answers.add((FieldMessage) message);
        }

        void sendKeepAlive() {
            sendKeepAlive(context);
        }
    }

    private final class Callbacks implements MessageHandlerCallbacks {
        @Override
        public void onChannelActive() {
            greeted.countDown();
        }

        @Override
        public void onChannelInactive() {
            ended.countDown();
        }

        @Override
        public void onWritabilityChanged(boolean writable) {
            // the library waits by itself until it can write
        }

        @Override
        public void onExceptionCaught(Throwable error) {
            System.err.println("exception: " + error);  // whoever waits will wait in vain, and say so
        }
    }
}
