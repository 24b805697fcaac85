// SPDX-License-Identifier: Apache-2.0
// `ostinato show`: what it draws, writes and refuses.

#include <gtest/gtest.h>

#include <array>

#include "search/files/sha256.h"
#include "tests/cli/support/cli_run.h"

namespace ostinato::cli::test {
namespace {

TEST(ShowCommand, DrawsAndWritesFiles) {
  const TemporaryFolder folder;
  make_plan(folder, 4);
  const Result result =
      ostinato_run({"show", folder / "v.json", folder / "v.toml", "--width", "80", "--html",
                    folder / "v.html", "--svg", folder / "v.svg", "--perfetto", folder / "v.trace.json"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("device3"), std::string::npos);
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos) << "no terminal, no colours";
  EXPECT_NE(read_text(folder / "v.html").find("<canvas"), std::string::npos);
  EXPECT_NE(read_text(folder / "v.svg").find("<svg "), std::string::npos);
  EXPECT_FALSE(nlohmann::json::parse(read_text(folder / "v.trace.json"))["traceEvents"].empty());
}

TEST(ShowCommand, ShowsAWindowOfSomeDevices) {
  const TemporaryFolder folder;
  make_plan(folder, 8);
  const auto shown = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"show", folder / "v.json", folder / "v.toml"});
    return ostinato_run(more);
  };
  const Result result = shown({"--devices", "0,2-3", "--from", "10us", "--to", "20000ns"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out.find("\ndevice1"), std::string::npos);
  EXPECT_NE(result.out.find("\ndevice3"), std::string::npos);
  EXPECT_NE(result.out.find("|10 us"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("|20 us"), std::string::npos) << result.out;
  for (const auto& [option, value, message] : std::vector<std::array<std::string, 3>>{
           {"--devices", "0-4", "--devices needs positions from 0 to 3, such as 0-3,7; got \"0-4\""},
           {"--devices", "3-2", "--devices needs positions"},
           {"--devices", "1,", "--devices needs positions"},
           {"--from", "soon", "--from needs a time with a unit, such as 12.5ms; got \"soon\""},
           {"--from", "1s", "--from 1s is after the end of the plan, 33 us"},
           {"--from", "5", "--from needs a time with a unit, such as 12.5ms; got \"5\""},
           {"--to", "0.02", "--to needs a time with a unit, such as 12.5ms; got \"0.02\""},
           {"--to", "0us", "--to 0us must be later than --from"}}) {
    const Result wrong = shown({option, value});
    EXPECT_EQ(wrong.status, 2) << option << value;
    EXPECT_NE(wrong.err.find(message), std::string::npos) << wrong.err;
  }
}

/// The JSON that a page carries.
nlohmann::json page_data(const std::string& path) {
  const std::string page = read_text(path), begin = R"(id="data">)";
  const std::size_t at = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(at, page.find("</script>", at) - at));
}

TEST(ShowCommand, PutsOtherPlansBelow) {
  const TemporaryFolder folder;
  make_plan(folder, 8);
  const std::string page = folder / "page.html";
  const Result result = ostinato_run({"show", folder / "v.json", folder / "v.toml", "--html", page,
                                      "--against", "gpipe", "--against", folder / "v.json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const auto plans = page_data(page)["plans"];
  ASSERT_EQ(plans.size(), 3u);
  EXPECT_EQ(plans[0]["title"], folder / "v.json");
  EXPECT_EQ(plans[1]["title"], "gpipe");
  EXPECT_EQ(plans[1]["steps"].size(), plans[0]["steps"].size());
  EXPECT_GT(plans[1]["devices"][0]["peak"], plans[0]["devices"][0]["peak"]);
  EXPECT_EQ(plans[2]["steps"], plans[0]["steps"]);
}

TEST(ShowCommand, OneFOneBOfSeveralChunksIsInterleaved) {
  const TemporaryFolder folder;
  const std::string placement = folder / "p.toml", plan = folder / "p.json", page = folder / "page.html";
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"placement", "looped", "--devices", "2", "--chunks", "2", "--output",
                                 placement},
        {"search", placement, "--micro-batches", "4", "--output", plan},
        {"show", plan, placement, "--html", page, "--against", "1f1b"}}) {
    const Result result = ostinato_run(words);
    ASSERT_EQ(result.status, 0) << result.err;
  }
  EXPECT_EQ(page_data(page)["plans"][1]["title"], "interleaved-1f1b");
}

TEST(ShowCommand, SaysWhyItCannotPutAPlanBelow) {
  const TemporaryFolder folder;
  make_plan(folder, 4);
  const std::vector<std::string> show = {"show", folder / "v.json", folder / "v.toml"};
  const auto failure = [&](std::vector<std::string> more) {
    more.insert(more.begin(), show.begin(), show.end());
    const Result result = ostinato_run(more);
    EXPECT_EQ(result.status, 2) << result.out;
    return result.err;
  };
  EXPECT_NE(failure({"--against", "1f1b"}).find("--against is drawn on the page: add --html FILE"),
            std::string::npos);
  EXPECT_NE(failure({"--trace", "out"}).find("--trace is drawn on the page"), std::string::npos);
  const std::string page = folder / "page.html";
  EXPECT_NE(failure({"--html", page, "--against", "2f2b"})
                .find("--against 2f2b: neither a plan's file nor a known schedule (gpipe, 1f1b, "),
            std::string::npos);
  EXPECT_NE(failure({"--html", page, "--placement", page}).find("needs --against"), std::string::npos);
}

TEST(ShowCommand, DrawsThePlanWhereItCannotDrawTheOther) {
  const TemporaryFolder folder;
  make_plan(folder, 4);
  const std::string page = folder / "page.html";
  const Result result = ostinato_run({"show", folder / "v.json", folder / "v.toml", "--html", page,
                                      "--against", "zb-v", "--against", "gpipe"});
  EXPECT_EQ(result.status, 0);
  EXPECT_NE(result.err.find("not drawn: --against zb-v is not possible on this placement: "),
            std::string::npos)
      << result.err;
  EXPECT_EQ(page_data(page)["plans"].size(), 2U);
  EXPECT_EQ(page_data(page)["plans"][1]["title"], "gpipe");
}

TEST(ShowCommand, LaysAMeasuredStepOverItsPlan) {
  const TemporaryFolder folder;
  make_plan(folder, 4);
  const std::string page = folder / "page.html";
  const auto plan = nlohmann::json::parse(read_text(folder / "v.json"));
  const auto trace = [&](const std::string& digest, long makespan, int device) {
    const nlohmann::json instruction = {{"text", "0F0"},    {"action", "F"},      {"stage", 0},
                                        {"micro_batch", 0}, {"planned_start", 0}, {"planned_end", 1000},
                                        {"start", 100},     {"end", 1300}};
    folder.write("rank-0.json", nlohmann::json{{"format", "ostinato-trace/1"},
                                               {"rank", 0},
                                               {"device", device},
                                               {"step", 1},
                                               {"plan_sha256", digest},
                                               {"makespan", makespan},
                                               {"instructions", {instruction}},
                                               {"step_seconds", {0.5}}}
                                    .dump());
    return ostinato_run(
        {"show", folder / "v.json", folder / "v.toml", "--html", page, "--trace", folder / "."});
  };
  const std::string digest = sha256(read_text(folder / "v.json"));
  const long makespan = plan["makespan"];
  const Result result = trace(digest, makespan, 0);
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(page_data(page)["measured"]["devices"][0][0],
            nlohmann::json::parse(R"(["F", 0, 0, 0, 100, 1300])"));
  const Result other = trace(std::string(64, 'a'), makespan, 0);
  EXPECT_EQ(other.status, 3);
  EXPECT_NE(other.err.find("the trace is of another plan: its sha256 begins with aaaaaaaaaaaa"),
            std::string::npos)
      << other.err;
  const Result longer = trace(digest, makespan + 1000, 0);
  EXPECT_EQ(longer.status, 3);
  EXPECT_NE(longer.err.find("numbers of micro-batches differ"), std::string::npos) << longer.err;
  const Result wider = trace(digest, makespan, 7);
  EXPECT_EQ(wider.status, 3);
  EXPECT_NE(wider.err.find("has 8 devices, the placement 4"), std::string::npos) << wider.err;
}

TEST(ShowCommand, AndWhatReplaysOrRunsAPlanRefusesOneThatDoesNotHold) {
  const TemporaryFolder folder;
  make_plan(folder, 4);
  std::string text = read_text(folder / "v.json");
  const std::string key = "\"makespan\": ";
  text.replace(text.find(key), key.size(), key + "1");  // ten times as long, and more
  const std::string changed = folder.write("changed.json", text);
  for (const char* command : {"show", "simulate", "lower"}) {
    const Result result = ostinato_run({command, changed, folder / "v.toml"});
    EXPECT_EQ(result.status, 3) << command;
    EXPECT_NE(result.err.find("changed.json: the plan is not correct for "), std::string::npos) << result.err;
  }
}

TEST(ShowCommand, WithJsonOnlyNamesWhatItWrote) {
  const TemporaryFolder folder;
  make_plan(folder, 4);
  const nlohmann::json json = ostinato_run({"show", folder / "v.json", folder / "v.toml", "--html",
                                            folder / "v.html", "--svg", folder / "v.svg", "--json"})
                                  .json();
  EXPECT_EQ(json["html"], folder / "v.html");
  EXPECT_EQ(json["svg"], folder / "v.svg");
}

}  // namespace
}  // namespace ostinato::cli::test
