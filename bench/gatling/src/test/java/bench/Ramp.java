package bench;

import static io.gatling.javaapi.core.CoreDsl.*;
import static io.gatling.javaapi.http.HttpDsl.*;

import io.gatling.javaapi.core.ScenarioBuilder;
import io.gatling.javaapi.core.Simulation;
import io.gatling.javaapi.http.HttpProtocolBuilder;

/**
 * Users arrive at a rate that rises to a level and stays there, whether or not the server keeps up. This is an open
 * load; wrk and oha wait for the last response before they send the next request.
 *
 * <p>Properties: url (of the server), path (/1kb.bin), rate (maximum users per second, 1000), requests (of each user,
 * 7), ramp and level (seconds, 30 each). The defaults make 7 000 requests per second.
 */
public class Ramp extends Simulation {
  private static final String PATH = System.getProperty("path", "/1kb.bin");
  private static final int RATE = Integer.getInteger("rate", 1000);
  private static final int REQUESTS = Integer.getInteger("requests", 7);
  private static final int RAMP_SECONDS = Integer.getInteger("ramp", 30);
  private static final int LEVEL_SECONDS = Integer.getInteger("level", 30);

  private final HttpProtocolBuilder protocol =
      http.baseUrl(System.getProperty("url", "http://127.0.0.1:8080")).shareConnections();

  private final ScenarioBuilder user =
      scenario("user").repeat(REQUESTS).on(exec(http("get").get(PATH).check(status().is(200))));

  {
    setUp(
            user.injectOpen(
                rampUsersPerSec(1).to(RATE).during(RAMP_SECONDS),
                constantUsersPerSec(RATE).during(LEVEL_SECONDS)))
        .protocols(protocol)
        .assertions(global().failedRequests().count().is(0L));
  }
}
